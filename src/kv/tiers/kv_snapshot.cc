#include "kv/tiers/kv_snapshot.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#define XXH_INLINE_ALL
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/check.h"
#include "base/error.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "snapshots are little-endian and written in place");

constexpr char kMagic[8] = {'q', 'u', 'i', 'r', 'e', ' ', 'k', 'v'};
constexpr uint32_t kNodePart = 1, kEndPart = 2;
constexpr uint32_t kMostHeadBytes = 16 << 20;  // thousands of layers

uint64_t checksum_of(std::span<const std::byte> part, uint64_t before) {
  return XXH3_64bits_withSeed(part.data(), part.size(), before);
}

void put(std::vector<std::byte>& part, const void* data, size_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  part.insert(part.end(), begin, begin + bytes);
}

template <class T>
void put(std::vector<std::byte>& part, T value) {
  put(part, &value, sizeof(value));
}

template <class T>
T value_in(std::span<const std::byte> bytes, size_t offset = 0) {
  T value;
  std::memcpy(&value, bytes.subspan(offset, sizeof(T)).data(), sizeof(T));
  return value;
}

class OpenFile {
 public:
  // A pipe would keep whoever opens it waiting: hence O_NONBLOCK.
  explicit OpenFile(const std::string& path)
      : path_(path), file_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (file_ < 0) throw Error("cannot open {}: {}", path, std::strerror(errno));
    struct stat status {};
    const bool is_file = ::fstat(file_, &status) == 0 && S_ISREG(status.st_mode);
    if (is_file) size_ = uint64_t(status.st_size);
    if (is_file) return;
    ::close(file_);
    throw Error("{} is not a regular file", path);
  }
  ~OpenFile() { ::close(file_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  uint64_t size() const { return size_; }
  void read(uint64_t offset, std::span<std::byte> into) const {
    while (!into.empty()) {
      const ssize_t got = ::pread(file_, into.data(), into.size(), off_t(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw Error("cannot read {}: {}", path_, std::strerror(errno));
      if (got == 0) throw Error("cannot read {}: it became shorter meanwhile", path_);
      offset += uint64_t(got);
      into = into.subspan(size_t(got));
    }
  }

 private:
  std::string path_;
  int file_;
  uint64_t size_ = 0;
};

}  // namespace

// ---- writing -----------------------------------------------------------------------------------------------------

SnapshotWriter::SnapshotWriter(std::unique_ptr<ReplacingFile> file, const KvIdentity& identity,
                               const KvLayout& layout)
    : file_(std::move(file)) {
  const std::string text = describe(identity, layout);
  CHECK(text.size() <= kMostHeadBytes);
  put(part_, kMagic, sizeof(kMagic));
  put(part_, kSnapshotVersion);
  put(part_, uint32_t(text.size()));
  put(part_, text.data(), text.size());
  write_part();
}

void SnapshotWriter::write_part() {
  checksum_ = checksum_of(part_, checksum_);
  put(part_, checksum_);
  file_->append(part_);
  part_.clear();
}

void SnapshotWriter::add(const KvNode& node) {
  put(part_, kNodePart);
  put(part_, node.parent);
  if (node.parent == KvNode::kNoParent) {
    put(part_, node.salt.key);
    put(part_, node.salt.text);
    put(part_, node.salt.pruned);
  }
  if (node.salt.pruned != 0) {
    const PrunedDocument& document = node.document.value();
    put(part_, document.rows);
    put(part_, uint32_t(document.name.size()));
    put(part_, document.name.data(), document.name.size());
    put(part_, uint32_t(document.head_cells.size()));
    for (const auto& cells : document.head_cells) {
      put(part_, uint32_t(cells.size()));
      put(part_, cells.data(), cells.size() * sizeof(uint32_t));
    }
  }
  put(part_, uint32_t(node.tokens.size()));
  for (const auto& page : node.pages) put(part_, uint8_t(page.empty() ? 0 : 1));
  put(part_, node.tokens.data(), node.tokens.size() * sizeof(TokenId));
  for (const auto& page : node.pages) put(part_, page.data(), page.size());
  write_part();
  ++nodes_;
}

void SnapshotWriter::finish() {
  put(part_, kEndPart);
  put(part_, nodes_);
  write_part();
  file_->finish();
}

SnapshotFigures save_snapshot(const std::string& path, const KvIdentity& identity, const KvLayout& layout,
                              const NextNodes& next, uint64_t most_bytes) {
  std::vector<KvNode> nodes = next();
  if (nodes.empty()) throw Error("nothing is cached that could be saved to {}", path);
  SnapshotFigures figures;
  SnapshotWriter writer(std::make_unique<ReplacingFile>(path), identity, layout);
  for (; !nodes.empty(); nodes = next()) {
    for (const KvNode& node : nodes) {
      writer.add(node);
      figures.tokens += node.tokens.size();
      figures.pages += uint64_t(std::ranges::count_if(node.pages, [](const auto& p) { return !p.empty(); }));
      if (writer.size() > most_bytes)
        throw Error("what is cached does not fit into the {} bytes that are left for {}", most_bytes, path);
    }
  }
  writer.finish();
  figures.nodes = writer.nodes();
  figures.bytes = writer.size();
  return figures;
}

// ---- reading -----------------------------------------------------------------------------------------------------

SnapshotReader::SnapshotReader(SnapshotBytes bytes, const KvIdentity& identity, const KvLayout& layout)
    : bytes_(std::move(bytes)), layout_(layout) {
  read_head(describe(identity, layout));
}

std::string SnapshotReader::where() const {
  return fmt::format("byte {}", offset_ - part_.size());
}

void SnapshotReader::damaged(const std::string& what) const {
  throw Error("{}: the snapshot is damaged: {}", bytes_.name, what);
}

std::span<const std::byte> SnapshotReader::extend_part(uint64_t count) {
  if (count > bytes_.size - offset_) {
    throw Error("{}: the snapshot is cut short: what begins at {} needs more than the file's {} bytes",
                bytes_.name, where(), bytes_.size);
  }
  const size_t before = part_.size();
  part_.resize(before + count);
  const std::span<std::byte> added = std::span(part_).subspan(before);
  bytes_.read(offset_, added);
  offset_ += count;
  return added;
}

void SnapshotReader::check_part() {
  const size_t bytes = part_.size();
  const auto said = value_in<uint64_t>(extend_part(sizeof(uint64_t)));
  checksum_ = checksum_of(std::span(part_).first(bytes), checksum_);
  if (said != checksum_) damaged(fmt::format("what begins at {} does not have its checksum", where()));
  part_.clear();
}

void SnapshotReader::read_head(const std::string& own) {
  if (bytes_.size < sizeof(kMagic) ||
      std::memcmp(extend_part(sizeof(kMagic)).data(), kMagic, sizeof(kMagic)) != 0)
    throw Error("{} is not a snapshot of a KV cache", bytes_.name);
  const auto version = value_in<uint32_t>(extend_part(sizeof(uint32_t)));
  if (version != kSnapshotVersion) {
    throw Error("{}: this snapshot has version {} of the format, this program knows version {}", bytes_.name,
                version, kSnapshotVersion);
  }
  const auto length = value_in<uint32_t>(extend_part(sizeof(uint32_t)));
  if (length > kMostHeadBytes) damaged(fmt::format("its head claims to have {} bytes", length));
  const auto text = extend_part(length);
  const std::string identity(reinterpret_cast<const char*>(text.data()), text.size());
  check_part();
  if (identity != own) throw Error("{}: {}", bytes_.name, difference(identity, own));
}

std::optional<KvNode> SnapshotReader::next() {
  const auto kind = value_in<uint32_t>(extend_part(sizeof(uint32_t)));
  if (kind == kNodePart) return read_node();
  if (kind != kEndPart) damaged(fmt::format("at {} is neither a node nor the end", where()));
  read_end();
  return std::nullopt;
}

PrunedDocument SnapshotReader::read_document() {
  const auto number = [&] { return value_in<uint32_t>(extend_part(sizeof(uint32_t))); };
  PrunedDocument document;
  document.rows = number();
  const std::string at = where();
  const auto name = extend_part(std::min(number(), 1u << 16));
  document.name.assign(reinterpret_cast<const char*>(name.data()), name.size());
  // As many as a cache has at most; and of each no more than the file has bytes for.
  const uint32_t heads = number();
  if (heads > 1u << 20) damaged(fmt::format("the pruned text at {} has {} heads", at, heads));
  for (uint32_t head = 0; head < heads; ++head) {
    const uint32_t cells = number();
    const auto bytes = extend_part(uint64_t(cells) * sizeof(uint32_t));
    std::memcpy(document.head_cells.emplace_back(cells).data(), bytes.data(), bytes.size());
  }
  try {
    document.check(layout_);
  } catch (const Error& error) {
    damaged(fmt::format("at {} {}", at, error.what()));
  }
  return document;
}

KvNode SnapshotReader::read_node() {
  const auto parent = value_in<uint32_t>(extend_part(sizeof(uint32_t)));
  CacheSalt salt;
  std::optional<PrunedDocument> document;
  if (parent == KvNode::kNoParent) {
    for (uint64_t* number : {&salt.key, &salt.text, &salt.pruned})
      *number = value_in<uint64_t>(extend_part(sizeof(uint64_t)));
  }
  if (salt.pruned != 0) document = read_document();
  const auto tokens = value_in<uint32_t>(extend_part(sizeof(uint32_t)));
  if (tokens == 0 || tokens > layout_.node_tokens)
    damaged(fmt::format("the node at {} has {} tokens", where(), tokens));
  if (parent != KvNode::kNoParent && (parent >= is_full_.size() || !is_full_[parent]))
    damaged(fmt::format("the node at {} comes after none that there is", where()));
  std::vector<uint8_t> has_page;
  uint64_t bytes = uint64_t(tokens) * sizeof(TokenId);
  for (const std::byte flag : extend_part(layout_.node_pages.size())) has_page.push_back(uint8_t(flag));
  for (uint32_t n = 0; n < has_page.size(); ++n) {
    if (has_page[n] > (layout_.reaches(n, tokens) ? 1 : 0))
      damaged(fmt::format("the node at {} has pages that cannot be", where()));
    if (has_page[n] == 1) bytes += layout_.node_page_bytes(n);
  }
  std::span<const std::byte> rest = extend_part(bytes);
  KvNode node{.parent = parent,
              .salt = salt,
              .document = std::move(document),
              .tokens = std::vector<TokenId>(tokens),
              .pages = {}};
  std::memcpy(node.tokens.data(), rest.data(), tokens * sizeof(TokenId));
  rest = rest.subspan(tokens * sizeof(TokenId));
  for (uint32_t n = 0; n < has_page.size(); ++n) {
    const auto page = rest.first(has_page[n] == 1 ? layout_.node_page_bytes(n) : 0);
    node.pages.emplace_back(page.begin(), page.end());
    rest = rest.subspan(page.size());
  }
  check_part();
  is_full_.push_back(tokens == layout_.node_tokens);
  return node;
}

void SnapshotReader::read_end() {
  const auto nodes = value_in<uint64_t>(extend_part(sizeof(uint64_t)));
  check_part();
  if (nodes != is_full_.size()) damaged(fmt::format("it has {} nodes and says {}", is_full_.size(), nodes));
  if (offset_ != bytes_.size) damaged(fmt::format("{} bytes come after its end", bytes_.size - offset_));
}

SnapshotFigures restore_snapshot(KvCache& kv, const MakeMoves& make, const KvIdentity& identity,
                                 SnapshotBytes bytes) {
  SnapshotReader reader(std::move(bytes), identity, kv.layout());
  return restore_nodes(kv, make, reader);
}

SnapshotFigures restore_nodes(KvCache& kv, const MakeMoves& make, SnapshotReader& reader) {
  try {
    KvImport import(kv);
    while (const auto node = reader.next()) import.add(*node, make);
    const KvImport::Result result = import.commit();
    return {result.nodes, result.tokens, result.pages, result.bytes, result.tokens_left_out};
  } catch (const std::bad_alloc&) {
    kv.forget_everything();
    throw;
  }
}

SnapshotFigures restore_snapshot(KvCache& kv, const MakeMoves& make, const KvIdentity& identity,
                                 const std::string& path) {
  const OpenFile file(path);
  return restore_snapshot(kv, make, identity,
                          SnapshotBytes{path, file.size(), [&](uint64_t offset, std::span<std::byte> into) {
                                          file.read(offset, into);
                                        }});
}

}  // namespace quire
