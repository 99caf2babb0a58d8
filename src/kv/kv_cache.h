#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv/layout/kv_layout.h"
#include "kv/layout/kv_view.h"
#include "kv/pages/kv_events.h"
#include "kv/pages/kv_moves.h"
#include "kv/pages/page_pool.h"
#include "kv/pages/page_table.h"
#include "kv/prefix/block_news.h"
#include "kv/prefix/prefix_index.h"

namespace quire {

// What a sequence needs room for.
struct SequenceSize {
  SequenceSize(uint32_t tokens, uint32_t bound = UINT32_MAX) : tokens(tokens), bound(bound) {}
  uint32_t rows() const { return std::min(tokens, bound); }  // at once, in layers that see everything
  uint32_t tokens;
  uint32_t bound;  // of those rows
};

// How many pages each layer group needs to hold `sequences` sequences of that size which are computed in
// chunks of at most `chunk`: a window group keeps only what its window and one chunk span.
std::vector<uint32_t> pages_for(const KvLayout& layout, SequenceSize size, uint32_t chunk,
                                uint32_t sequences);

// How many pages each layer group gets of `bytes`, for at most `sequences` sequences at once: as many tokens as possible
// in the groups that keep everything; in window groups what the sequences' windows span and a quarter of those tokens, so
// that prefixes can be continued there too, but at most half of them unless one sequence needs more. States get `state_bytes`
// of them, but what one sequence needs at least; 0: what the sequences need and some to keep, of at most half of the bytes.
std::vector<uint32_t> pages_within(const KvLayout& layout, size_t bytes, uint32_t chunk, uint32_t sequences,
                                   size_t state_bytes = 0);
inline constexpr uint32_t kStatesHeld = 2;   // by a sequence that runs, at most
inline constexpr uint32_t kStatesKept = 16;  // beside them, where nobody says how many

size_t kv_bytes(const KvLayout& layout, std::span<const uint32_t> pages_per_group);

// Why a prompt was found in the cache up to some token, and no further.
struct PrefixMiss {
  enum class Why : uint8_t {
    nothing,     // all of it was found, but for the last token, which is always computed
    off,         // sharing is off
    never_seen,  // no prompt began like this
    ended,       // what is cached ends there: the rest is new
    differs,     // what is cached goes on otherwise
    evicted,     // it was there, and its memory was needed
    window,      // the pages that the window layers would see are gone
    state,       // keys and values are there, but no state after them
    no_room,     // no page was free for the copy
  };
  Why why = Why::off;
  uint32_t position = 0;  // the first token that was not found
  uint32_t known = 0;     // tokens whose keys and values are there, where a state is missing
  double evicted_seconds_ago = 0;

  // "differs at token 813"
  std::string text() const;
};

struct PrefixMatch {
  uint32_t tokens = 0;
  PrefixMiss miss;
};

// What a tier has of a prompt beyond what is in memory, and in the tiers before it.
struct TierMatch {
  struct Page {
    uint32_t page = 0, node = 0;  // which of KvLayout::node_pages, of which node from the first on
  };
  uint32_t memory_tokens = 0;  // are found without it
  uint32_t tokens = 0;         // would be found if these pages were here
  std::vector<Page> pages;     // first those of the first tokens
  size_t bytes = 0;            // of them
};

class DiskTier;
class HostTier;
class RemoteTier;

// Which rows of a sequence stay when it is pruned. Each KV head of each layer has its own, and `count` of them on average:
// one may have some pages more, at the cost of others, where the layout's cells are alike.
struct KeptRows {
  uint32_t count = 0;
  // By layer, then KV head; ascending. As many as `count`, give or take whole pages. Of layers with a window: empty.
  std::vector<std::vector<uint32_t>> of_head;
};

// How a sequence lets go of rows as it grows: those of its last pages take the places of rows that nobody wants any more, and the
// pages are given up. So a row is not where its order says; keys carry their rotation, and attention asks for no order.
struct MovedRows {
  uint32_t count = 0;  // rows that are left: whole nodes
  struct Row {
    uint32_t from = 0, to = 0;
  };
  // By layer, then KV head, ascending; of layers with a window: empty.
  std::vector<std::vector<Row>> of_head;
  // How many positions before its own each of the rows that are left will stand, by head as above; empty: all stay where they are.
  std::vector<std::vector<uint32_t>> back;
  uint32_t window_back = 0;  // the same of all rows of layers with a window
};

// A text of which only some rows are kept, which others may begin with: see KvCache::publish_document.
struct PrunedDocument {
  std::string name;                                    // says how it was pruned; printable
  uint32_t rows = 0;                                   // of every head on the mean: whole nodes
  std::vector<std::vector<uint32_t>> head_cells = {};  // as PageTable has them; empty: every head has its own

  // Throws Error if no cache of this layout has such a one. It may come from anywhere.
  void check(const KvLayout& layout) const;
};

struct KvCacheOptions {
  bool sharing = true;
  uint64_t salt = 0;  // of the model, its formats and kernels
  // A run leaves the state that it began with as it was, so that the sequence can go back there: it may have guessed wrong.
  bool way_back = false;
};

// Which page has the keys and values of which tokens, in sequences that share pages as far as their tokens are the same. It
// decides and never touches a byte: what must be copied or brought is in the list of moves, to be made before the next step
// computes. Owned by the engine; engine thread only.
class KvCache {
 public:
  KvCache(KvLayout layout, std::span<const uint32_t> pages_per_group, const KvCacheOptions& options = {});

  const KvLayout& layout() const { return layout_; }
  std::vector<uint32_t> pages_per_group() const;
  const KvEvents& events() const { return events_; }
  uint32_t node_tokens() const { return layout_.node_tokens; }
  PageTable make_table(SequenceId owner = {}, CacheSalt salt = {}) const {
    PageTable table(uint32_t(layout_.groups.size()), owner, salt);
    table.states_.group = layout_.states;
    return table;
  }

  // How much of `tokens` a new sequence would find, without taking it. The last token is never found: its logits are
  // needed.
  PrefixMatch lookup(const SaltedTokens& tokens) const;
  // Takes shares of the pages that hold the beginning of `tokens` under the table's salt, and copies the rows of the node
  // where it ends. REQUIRES: the table is empty.
  PrefixMatch attach(PageTable& table, std::span<const TokenId> tokens);

  // Makes room for positions below `tokens`, evicting what nobody holds. All or nothing: false leaves the table as it
  // was.
  [[nodiscard]] bool reserve(PageTable& table, uint32_t tokens);
  // Says what the next run of a sequence is, which decides what it does with states: it computes `count` tokens from this row
  // on, then `guesses` that may be wrong. Nothing where a model has none. REQUIRES: the room for them was reserved.
  void begin_run(PageTable& table, uint32_t row, uint32_t count, uint32_t guesses = 0);
  // So many tokens are computed, and runs on their way compute so many more: states after all others are given up, and the next
  // run begins with the last that is left. REQUIRES: there is a state after `computed`, if there are states.
  void end_run(PageTable& table, uint32_t computed, uint32_t ahead = 0);
  // A state is worth keeping where these tokens end, if that is the end of a node: a prompt's, or where others go on otherwise.
  void keep_state_at(PageTable& table, uint32_t tokens) const;

  // Whether a sequence of that size, computed in chunks of `chunk`, could run if it were alone.
  bool could_hold(SequenceSize size, uint32_t chunk) const;

  // Whether a new sequence of that size, computed in chunks of `chunk`, of which it may find the first ones in the cache,
  // would find room now and leave `headroom` pages.
  bool fits(SequenceSize size, const SaltedTokens& findable, uint32_t chunk, uint32_t headroom) const;

  // Publishes the nodes that the first `computed` of the sequence's tokens have filled. Where another sequence has
  // published the same tokens, the table takes a share of its page instead.
  void publish(PageTable& table, std::span<const TokenId> tokens, uint32_t computed);
  // Frees the pages that no token from position `next` on can see any more.
  void release_behind_window(PageTable& table, uint32_t next);
  // Publishes what is computed, its last node in part, and gives up every share.
  enum class Reason : uint8_t { finished, preempted, forgotten };  // forgotten: nothing more is published
  void release(PageTable& table, std::span<const TokenId> tokens, uint32_t computed, Reason reason);

  // After something failed halfway: every page is free again, and nothing is found any more, in memory or on the disk.
  // Allocates nothing. REQUIRES: every table was cleared or is gone.
  void forget_everything();

  // A table of its own for a sequence that has the first `at` tokens in common with this one. Nothing if a state is needed
  // that is not there any more, if there is no room for the pages where they part or for the state that the other would have
  // written over, or if a window has passed it.
  std::optional<PageTable> fork(PageTable& table, uint32_t at, SequenceId owner);

  // Of the first `computed` rows, moves those that stay together into pages of its own and gives up the shares of all
  // others; what is published of them can still be found. Without room for a copy they move in the pages that nobody else
  // holds. Layers with a window keep theirs. False, and nothing changed, if neither can be done.
  [[nodiscard]] bool keep_rows(PageTable& table, uint32_t computed, const KeptRows& kept);
  // Of the first `rows`, which fill whole nodes, the last give up their pages; where they go is said. What was published of the
  // sequence can still be found, where there is room for a copy. False, and nothing changed, if pages that others hold would be
  // written over and there is no room for copies.
  [[nodiscard]] bool drop_rows(PageTable& table, uint32_t rows, const MovedRows& moved);
  // ---- pruned texts that others begin with (kv_documents.cc)
  // Whether there can be any: all layers are of one group that sees everything.
  static bool may_share_documents(const KvLayout& layout);
  // Lets others find what keep_rows has left of these tokens, which are all that the table has, under a salt of this text and of how
  // it was pruned. REQUIRES: whole nodes were kept.
  void publish_document(const PageTable& table, const SaltedTokens& document, const std::string& name);
  // How many rows are kept of exactly these tokens under this salt; nothing: it is not there, or not all of it.
  std::optional<uint32_t> lookup_document(const SaltedTokens& document) const;
  // Takes shares of all its pages; says how many rows that is. REQUIRES: the table is empty.
  std::optional<uint32_t> attach_document(PageTable& table, const SaltedTokens& document);
  // Whether a new sequence that begins with it and has so many rows in all would find room now and leave `headroom` pages.
  // REQUIRES: it is there.
  bool fits_after(const SaltedTokens& document, uint32_t rows, uint32_t headroom) const;
  struct DocumentState {
    std::string name;
    CacheSalt salt;
    uint32_t rows = 0, pages = 0;  // that are there still
    size_t bytes = 0;
  };
  std::vector<DocumentState> documents() const;

  // A table that will be filled with tokens that are not a prefix: nothing of it is published.
  void never_publish(PageTable& table) const { table.pruned_ = true; }
  // Gives up the room for all rows from `rows` on: rejected drafts. What a window had already passed does not come back: a
  // window group can be continued from there only if the window before it is still there. REQUIRES: nothing of it is
  // published.
  void truncate(PageTable& table, uint32_t rows) const;

  // Full pages that are evicted from now on go to the tier, which must outlive the cache's use; to the host's memory if there are
  // both. `ahead`: by group, how many pages that are next to be evicted are copied there before they are.
  void evict_to(DiskTier& tier) { tier_ = &tier; }
  void evict_to(HostTier& tier, std::vector<uint32_t> ahead);
  // Full pages that are published from now on go to a store as well, from where others may have them. It must outlive the cache's use.
  void send_to(RemoteTier& tier) { remote_ = &tier; }
  // Sends what is published of the beginning of these tokens and is not there, as far as there is room for it.
  void send(const SaltedTokens& tokens);
  // Says which blocks are where, in memory and tiers, from now on. The listener must outlive the cache's use; null: nobody.
  void tell(BlockListener* listener);
  DiskTier* tier() const { return tier_; }
  HostTier* host() const { return host_; }
  RemoteTier* remote() const { return remote_; }
  // Which pages there would let more of `tokens` be found. None: the tier is of no use.
  TierMatch lookup_in_host(const SaltedTokens& tokens) const;
  TierMatch lookup_on_disk(const SaltedTokens& tokens) const;
  // The same of the store, as far as it is known what is there. What is on the disk or in the host's memory counts as missing.
  TierMatch lookup_in_store(const SaltedTokens& tokens) const;
  // Marks what memory and tiers have of these tokens as just used; what is used from then on has this number or more.
  uint64_t touch(const SaltedTokens& tokens);
  // Puts a page that came back where it can be found, held by nobody. `prefix`: all tokens up to its node's end. Evicts only what
  // nobody holds and was used before `use`; false: there is no such room. `node_page`: which of its node.
  [[nodiscard]] bool bring_back(uint32_t node_page, const SaltedTokens& prefix,
                                std::shared_ptr<const std::byte[]> page, uint64_t use,
                                KvEventKind kind = KvEventKind::loaded);

  // Begins to bring pages of `tokens` from the host tier; each can be found when it is here. They take room as those from the disk
  // do, in their order: the first that is not there or finds none and all after it are left out.
  struct Bringing {
    size_t pages = 0;     // of those asked for; some may have been here or on their way
    uint64_t ticket = 0;  // they are here when `asides_made` has come so far
  };
  Bringing bring_from_host(const SaltedTokens& tokens, std::span<const TierMatch::Page> pages, uint64_t use);
  uint64_t asides_made() const { return asides_made_; }
  uint32_t pages_arriving() const { return uint32_t(arriving_.size()); }
  size_t bytes_arriving() const { return bytes_arriving_; }
  // Asks for copies of pages that will soon be evicted, so that their room is free at once when it is needed: once for each step.
  void copy_ahead();

  // What was decided since and must be made before anything else is computed; and what is to be made aside, after that. Whoever
  // takes it says when it is made: of the second list in the order of tickets.
  KvMoves take_moves();
  KvMoves take_aside();
  void moved(const KvMoves& made);
  void moved_aside(const KvMoves& made);
  // Moves that were taken and not yet made.
  size_t moves_on_their_way() const { return on_their_way_; }
  bool has_moves() const { return !moves_.empty(); }  // that nobody has taken yet

  // Holds the full nodes of the beginning of `tokens` until the table is released.
  PageTable pin(const SaltedTokens& tokens, SequenceId owner);

  struct Stats {
    uint32_t capacity_pages = 0, held_pages = 0, cached_pages = 0, free_pages = 0, peak_held_pages = 0;
    size_t capacity_bytes = 0, held_bytes = 0, cached_bytes = 0, peak_held_bytes = 0;
    size_t shared_bytes = 0;  // that sharing saves: what the sequences see less what they hold
  };
  Stats stats() const;

  // A page that somebody holds or that can be found, for those who watch.
  struct PageState {
    PageId page;
    uint32_t shares = 0;
    bool published = false;
    uint32_t index = 0;   // in its sequence; of published ones
    uint32_t tokens = 0;  // rows that can be found; of published ones
    CacheSalt salt = {};  // under which they are; of published ones
    Clock::time_point used;
  };
  // The first `most` of them.
  std::vector<PageState> pages_in_use(uint32_t group, size_t most = SIZE_MAX) const;
  // Salts under which something can be found.
  size_t salts() const { return index_.roots().size() - 1; }
  struct GroupStats {
    uint32_t pages = 0, held = 0, cached = 0, free = 0;
  };
  GroupStats group_stats(uint32_t group) const;

  // What a step over `tables` (one per run) needs to know of them.
  KvTables flatten(std::span<const PageTable* const> tables) const;

  void check_invariants() const;

 private:
  friend class KvExport;  // kv_export.h: pages on their way out and in
  friend class KvImport;

  // The way down the index along some tokens: full nodes, then a part of one.
  struct Path {
    std::vector<PrefixNodeId> nodes;
    PrefixIndex::Longest part;  // `tokens` 0: none
    uint32_t tokens = 0;
    uint32_t known = 0;  // in whole nodes, states aside
    PrefixMiss miss;
  };
  Path find(const SaltedTokens& tokens) const;
  // Where the table's next node will be added; nothing if nobody has anything under its salt yet.
  std::optional<PrefixNodeId> node_before_next(const PageTable& table) const;
  // Shortens the path to where every layer group has the pages that the next token sees.
  void shorten_to_usable(Path& path) const;
  // Leaves out the part of a node at its end if there is no room for a copy beside the pages before it.
  void shorten_to_room(Path& path) const;
  PageRef share(uint32_t group, PageId page, PageTable& table, uint32_t index);
  void give_up(PageTable& table, uint32_t group, uint32_t index, KvEventKind kind);
  bool make_free(uint32_t group, uint32_t pages);
  void evict(uint32_t group, PageId page);
  std::vector<TokenId> tokens_up_to(PrefixNodeId node) const;
  void store_on_disk(uint32_t node_page, PageId page, PrefixNodeId node);
  void store_in_host(uint32_t node_page, PageId page, PrefixNodeId node);
  void send(uint32_t node_page, PageId page, PrefixNodeId node, const SaltedTokens& prefix);
  bool copy_ahead(uint32_t group, PageId page);  // false: the tier has no slot now
  // A page that nobody has; what nobody holds and was used before `use` makes room for it.
  std::optional<PageRef> take_unused(uint32_t group, uint64_t use);
  // Nodes for these tokens, as many as fill some: those that have none yet are added.
  std::vector<PrefixNodeId> add_path(const SaltedTokens& tokens);
  struct HostCopy {
    uint32_t slot = 0;
    uint64_t stamp = 0;   // HostTier::Copy's
    uint64_t ticket = 0;  // of the move that brings it there
  };
  struct Wanted {
    uint32_t group, node_page;
    PrefixNodeId node;
    HostCopy copy;
  };
  uint64_t ticket_of_arriving(PrefixNodeId node, uint32_t node_page) const;  // 0: it is not on its way
  bool make_room_for(const HostCopy& copy, uint32_t group, uint64_t use, std::vector<PageRef>& room);
  uint64_t send_for(std::vector<Wanted>& wanted, std::vector<std::vector<PageRef>>& room, uint64_t use);
  void arrive(uint64_t ticket);
  enum class Where : uint8_t { memory, host, disk, remote, nowhere };
  TierMatch match_in(Where tier, const SaltedTokens& tokens) const;
  void publish_node(PageTable& table, uint32_t depth, PrefixNodeId node);
  void publish_as(PrefixNodeId node, uint32_t node_page, PageId page, uint64_t use);
  void publish_tail(PageTable& table, std::span<const TokenId> tail);
  // The nodes of a document, if all its tokens are there: its pages are those of the last ones.
  std::vector<PrefixNodeId> document_nodes(const SaltedTokens& document) const;
  void forget_gone_documents();
  // ---- states (kv_states.cc)
  bool is_own(const PageRef& page) const;  // nobody else can see what is in it
  const PageRef* state_at(const PageTable& table, uint32_t tokens) const;
  std::optional<PageId> published_state(const PageTable& table, uint32_t tokens) const;
  PrefixNodeId node_at(const PageTable& table, uint32_t nodes) const;  // the last of its first so many
  bool wants_state(const PageTable& table, uint32_t tokens) const;
  uint32_t states_missing(PageTable& table);
  void take_states(PageTable& table, uint32_t pages);
  // Before somebody else begins with a state of its: room for what its next run leaves, which may have been planned already.
  [[nodiscard]] bool make_room_beside(PageTable& table, PageId state);
  void give_up(PageTable& table, PageTable::State state);
  void publish_state(PrefixNodeId node, const PageTable& table, const PageTable::State& state);
  void publish_states(PageTable& table, uint32_t computed);
  void begin_with(PageTable& table, uint32_t tokens, PageId page);
  std::optional<PageRef> room_to_keep(const PageTable& table, uint32_t tokens);
  void hold_node(PageTable& table, PrefixNodeId node);
  void touch_chain(PrefixNodeId node);
  size_t page_bytes(uint32_t group) const { return layout_.groups[group].page_bytes; }
  uint64_t place_of(uint32_t group, PageId page) const { return uint64_t(page.value) * page_bytes(group); }
  // Which nodes can be taken up in part: a state is at the end of one.
  PrefixIndex::Of parts() const {
    return layout_.has_states() ? PrefixIndex::Of::whole : PrefixIndex::Of::all;
  }
  uint32_t node_pages() const { return uint32_t(layout_.node_pages.size()); }
  // The pages of a node that the token after its first `tokens` sees, of which some are of these tokens.
  std::vector<std::optional<PageId>> seen_of_part(std::span<const std::optional<PageId>> pages,
                                                  uint32_t depth, uint32_t tokens) const;
  // Pages of its own with the rows of these, as the table's next node.
  bool copy_part(PageTable& table, std::span<const std::optional<PageId>> from, uint32_t depth);
  // It has pages for so many tokens; where it took none, its windows have passed.
  void end_at(PageTable& table, uint32_t tokens) const;
  // Its state, which was left by so many tokens, is that of fewer rows from now on.
  static void shift_state(PageTable& table, uint32_t computed, uint32_t rows);
  // The cells for the rows that stay, by head of the group: see PageTable.
  std::vector<std::vector<uint32_t>> cells_of(uint32_t group, uint32_t computed, const KeptRows& kept) const;
  // Moves these rows there, page lists to page lists.
  void gather(uint32_t group, const KeptRows& kept, std::span<const std::optional<PageRef>> from,
              std::span<const std::optional<PageRef>> to, std::span<const std::vector<uint32_t>> cells);
  // ---- rows that go as a sequence grows (kv_dropping.cc)
  // The pages that are written over, by group.
  std::vector<std::vector<bool>> written_pages(const PageTable& table, const MovedRows& moved) const;
  // Nobody else sees this page of the table from now on.
  void make_own(PageTable& table, uint32_t group, uint32_t index);
  void move_rows(const PageTable& table, const MovedRows& moved);
  void rotate_rows(const PageTable& table, const MovedRows& moved);
  void forget_prefix(PageTable& table);
  // Where the rows of the heads of one table are.
  void add_head_cells(uint32_t group, const PageTable& table, KvUnequalHeads<KvOwned>& flat) const;
  void record(KvEventKind kind, uint32_t group, PageId page, uint32_t index, SequenceId sequence);

  KvLayout layout_;
  KvCacheOptions options_;
  std::vector<std::unique_ptr<PagePool>> pools_;  // by group
  PrefixIndex index_;
  BlockNews news_;
  struct Published {
    PrefixNodeId node = PrefixIndex::kRoot;
    uint32_t node_page = 0;
  };
  std::vector<std::vector<Published>> published_as_;        // by group and page, for published ones
  std::vector<std::vector<Clock::time_point>> last_event_;  // by group and page
  KvEvents events_;
  uint64_t use_ = 0;  // counts attaches and releases
  uint64_t age_ = 0;  // how often it forgot everything
  DiskTier* tier_ = nullptr;
  RemoteTier* remote_ = nullptr;
  std::map<CacheSalt, PrunedDocument> documents_;  // some may be gone
  KvMoves moves_;
  size_t on_their_way_ = 0;

  // The host tier.
  HostTier* host_ = nullptr;
  std::vector<uint32_t> ahead_;                     // by group
  std::vector<std::vector<HostCopy>> host_copies_;  // by group and page, of published ones
  // A page on its way here: held by this, as is its node.
  struct Arriving {
    uint64_t ticket;
    PrefixNodeId node;
    uint32_t node_page;
    PageRef page;
    HostCopy copy;
    uint64_t use;
  };
  std::deque<Arriving> arriving_;  // by ticket
  size_t bytes_arriving_ = 0;
  KvMoves aside_;
  uint64_t asides_asked_ = 0, asides_made_ = 0;  // tickets
};

}  // namespace quire
