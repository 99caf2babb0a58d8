#include "kv/tiers/kv_snapshot.h"

#include <csignal>

#include <gmock/gmock.h>
#include <sys/resource.h>

#include "base/error.h"
#include "kv/tiers/test_snapshots.h"

namespace quire {
namespace {

using testing::HasSubstr;
using Snapshot = SnapshotTest;

TEST_F(Snapshot, RestoresEveryPageBitByBitInEveryFormatAndWithWindows) {
  const std::vector<std::vector<KvLayerShape>> layouts = {
      {layer(KvFormat::f16), layer(KvFormat::f16)},
      {layer(KvFormat::int8)},
      {layer(KvFormat::q4)},
      {layer(KvFormat::int8, KvFormat::q4), layer(KvFormat::int8, KvFormat::q4)},
      {layer(KvFormat::f16), layer(KvFormat::f16, 6), layer(KvFormat::f16), layer(KvFormat::f16, 9)},
      {layer(KvFormat::bf16, 6)}};
  for (const auto& shapes : layouts) {
    const auto from = make(shapes), to = make(shapes);
    compute(*from, counted(11));
    compute(*from, counted(25, 40));
    Tokens forked = counted(25, 40);
    forked[10] = 1;
    compute(*from, forked);
    const SnapshotFigures saved = save(*from, path());
    const SnapshotFigures restored = restore_snapshot(*to, to->make_moves(), identity(), path());
    EXPECT_EQ(pages_of(*to), pages_of(*from));
    EXPECT_EQ(restored.pages, from->stats().cached_pages);
    EXPECT_EQ(restored.pages, saved.pages);
    EXPECT_EQ(restored.tokens, saved.tokens);
    EXPECT_EQ(restored.bytes, from->stats().cached_bytes);
    EXPECT_EQ(saved.bytes, std::filesystem::file_size(path()));
    for (const Tokens& tokens : {counted(12), counted(26, 40), forked})
      EXPECT_EQ(to->lookup(tokens).tokens, from->lookup(tokens).tokens);
    from->check_invariants();
    to->check_invariants();
  }
}

TEST_F(Snapshot, SaysInWhatARunDiffersFromTheOneThatMadeIt) {
  const auto from = make({layer(KvFormat::int8)});
  compute(*from, counted(9));
  save(*from, path());
  const auto other = [&](auto change) {
    KvIdentity own = identity();
    change(own);
    const auto kv = make({layer(KvFormat::int8)});
    const std::string said = refusal(*kv, own, path());
    EXPECT_EQ(kv->stats().free_pages, 64u);
    EXPECT_THAT(said, HasSubstr(path()));
    return said;
  };
  EXPECT_THAT(other([](KvIdentity& i) { i.model_name = "owl", i.model = "beef"; }),
              HasSubstr("was made by the model 'fox', this run has 'owl'"));
  EXPECT_THAT(other([](KvIdentity& i) { i.model = "beef"; }),
              HasSubstr("by a model named 'fox' as well, but with other weights"));
  EXPECT_THAT(other([](KvIdentity& i) { i.positions = "cd"; }), HasSubstr("another --ctx"));
  EXPECT_THAT(other([](KvIdentity& i) { i.kernels = "avx2"; }),
              HasSubstr("with the kernels 'scalar', this run uses 'avx2'"));
  EXPECT_THAT(other([](KvIdentity& i) { ++i.numerics; }),
              HasSubstr("of the arithmetic, this program computes by version"));

  const auto into = [&](const std::vector<KvLayerShape>& shapes) {
    const auto kv = make(shapes);
    return refusal(*kv, identity(), path());
  };
  EXPECT_THAT(into({layer(KvFormat::f16)}), HasSubstr("was made with --kv int8, this run uses f16"));
  EXPECT_THAT(into({layer(KvFormat::int8, KvFormat::q4)}), HasSubstr("this run uses k=int8,v=q4"));
  EXPECT_THAT(into({layer(KvFormat::int8, 6)}), HasSubstr("layers lie otherwise"));
  EXPECT_THAT(into({layer(KvFormat::int8), layer(KvFormat::int8)}), HasSubstr("layers lie otherwise"));
  HostKv small(make_kv_layout(std::vector{layer(KvFormat::int8)}, 8), std::vector<uint32_t>{8});
  EXPECT_THAT(refusal(small, identity(), path()), HasSubstr("pages of 4 tokens, this run has pages of 8"));

  std::vector<std::byte> bytes = bytes_of(path());
  bytes[8] = std::byte(9);
  EXPECT_THAT(refusal(*from, identity(), in_memory(bytes)),
              HasSubstr("has version 9 of the format, this program knows version 3"));
  bytes[8] = std::byte(1);  // which knew no salts
  EXPECT_THAT(refusal(*from, identity(), in_memory(bytes)),
              HasSubstr("has version 1 of the format, this program knows version 3"));
  bytes[0] = std::byte('Q');
  EXPECT_THAT(refusal(*from, identity(), in_memory(bytes)), HasSubstr("is not a snapshot"));
}

TEST_F(Snapshot, PutsEveryPageBackUnderItsSaltAndUnderNoOther) {
  const CacheSalt one{.key = 1}, other{.key = UINT64_MAX, .text = 7};
  const auto from = make({layer(KvFormat::f16), layer(KvFormat::f16, 6)});
  compute(*from, counted(11));
  compute(*from, counted(11), one);
  compute(*from, counted(14), other);
  compute(*from, counted(9, 40), other);
  const SnapshotFigures saved = save(*from, path());
  const auto to = make({layer(KvFormat::f16), layer(KvFormat::f16, 6)});
  compute(*to, counted(5), one);  // some of it is there already
  EXPECT_EQ(restore_snapshot(*to, to->make_moves(), identity(), path()).nodes, saved.nodes);
  for (const CacheSalt salt :
       {CacheSalt{}, one, other, CacheSalt{.key = 1, .text = 7}, CacheSalt{.key = 2}}) {
    for (const Tokens& tokens : {counted(12), counted(15), counted(10, 40)})
      EXPECT_EQ(to->lookup({tokens, salt}).tokens, from->lookup({tokens, salt}).tokens);
  }
  EXPECT_EQ(to->lookup({counted(10, 40), one}).tokens, 0u);
  EXPECT_EQ(to->lookup({counted(10, 40), other}).tokens, 9u);
  EXPECT_EQ(to->salts(), 2u);
  from->check_invariants();
  to->check_invariants();
}

TEST_F(Snapshot, LargerThanItMayBeIsNotWritten) {
  const auto from = make({layer(KvFormat::f16)});
  compute(*from, counted(40));
  const uint64_t bytes = save(*from, path()).bytes;
  const std::vector<std::byte> before = bytes_of(path());
  for (const uint64_t most : {uint64_t(0), bytes / 2, bytes - 100}) {
    KvExport all(*from);
    EXPECT_THROW(
        save_snapshot(
            path(), identity(), from->layout(), [&] { return all.take(100, from->make_moves()); }, most),
        Error);
    EXPECT_EQ(bytes_of(path()), before);
  }
  KvExport all(*from);
  EXPECT_EQ(save_snapshot(
                path(), identity(), from->layout(), [&] { return all.take(100, from->make_moves()); }, bytes)
                .bytes,
            bytes);
  from->check_invariants();
}

TEST_F(Snapshot, IsRefusedWhicheverByteIsChanged) {
  const auto from = make({layer(KvFormat::int8), layer(KvFormat::q4, 6)});
  compute(*from, counted(10), {.key = 11, .text = 12});
  save(*from, path());
  const std::vector<std::byte> good = bytes_of(path());
  const auto to = make({layer(KvFormat::int8), layer(KvFormat::q4, 6)}, 8);
  for (size_t i = 0; i < good.size(); ++i) {
    for (const uint8_t flip : {0x01, 0x80, 0xff}) {
      std::vector<std::byte> bad = good;
      bad[i] ^= std::byte(flip);
      ASSERT_NE(refusal(*to, identity(), in_memory(bad)), "") << "byte " << i;
      ASSERT_EQ(to->stats().free_pages, 16u);
    }
  }
  EXPECT_EQ(refusal(*to, identity(), in_memory(good)), "");
  EXPECT_EQ(pages_of(*to), pages_of(*from));
  to->check_invariants();
}

TEST_F(Snapshot, IsRefusedWhereverItIsCutAndIfAnythingFollowsIt) {
  const auto from = make({layer(KvFormat::int8)});
  compute(*from, counted(10));
  save(*from, path());
  std::vector<std::byte> bytes = bytes_of(path());
  const auto to = make({layer(KvFormat::int8)}, 8);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const std::string said = refusal(*to, identity(), in_memory(std::span(bytes).first(length)));
    ASSERT_THAT(said, HasSubstr(length < 8 ? "is not a snapshot" : "is cut short")) << length;
    ASSERT_EQ(to->stats().free_pages, 8u);
  }
  bytes.push_back(std::byte(0));
  EXPECT_THAT(refusal(*to, identity(), in_memory(bytes)), HasSubstr("1 bytes come after its end"));
  to->check_invariants();
}

TEST_F(Snapshot, MadeOfPartsOfTwoIsRefused) {
  const auto kv = make({layer(KvFormat::int8)});
  compute(*kv, counted(8));
  save(*kv, path());
  const std::vector<std::byte> first = bytes_of(path());
  const auto other = make({layer(KvFormat::int8)});
  compute(*other, counted(8, 50));
  save(*other, path());
  std::vector<std::byte> mixed = bytes_of(path());
  ASSERT_EQ(first.size(), mixed.size());
  const size_t node = 12 + 1 + 16 + kv->layout().groups[0].page_bytes + 8, end = 20;
  std::copy(first.end() - ptrdiff_t(end + node), first.end() - ptrdiff_t(end),
            mixed.end() - ptrdiff_t(end + node));
  EXPECT_THAT(refusal(*kv, identity(), in_memory(mixed)), HasSubstr("does not have its checksum"));
}

TEST_F(Snapshot, LeavesTheOldFileAloneWhereTheSystemTakesNoMoreBytes) {
  const auto kv = make({layer(KvFormat::f32)});
  compute(*kv, counted(4));
  save(*kv, path());
  const std::vector<std::byte> old = bytes_of(path());
  compute(*kv, counted(200, 50));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{2 * old.size(), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
  std::string said;
  try {
    save(*kv, path());
  } catch (const Error& error) {
    said = error.what();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(said, HasSubstr("File too large"));
  EXPECT_EQ(bytes_of(path()), old);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  kv->check_invariants();
}

TEST_F(Snapshot, OfNothingIsNotWritten) {
  const auto kv = make({layer(KvFormat::f32)});
  EXPECT_THROW(save(*kv, path()), Error);
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_THAT(refusal(*kv, identity(), path()), HasSubstr("cannot open"));
  EXPECT_THAT(refusal(*kv, identity(), folder_), HasSubstr("is not a regular file"));
}

}  // namespace
}  // namespace quire
