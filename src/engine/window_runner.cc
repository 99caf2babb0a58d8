#include "engine/window_runner.h"

#include "base/check.h"
#include "engine/batch.h"

namespace quire {

WindowRunner::WindowRunner(const EngineModel& model, const KvFormats& formats, uint32_t tokens,
                           uint32_t chunk)
    : layout_(make_kv_layout(kv_shapes(*model.spec, formats))),
      kv_(layout_, pages_for(layout_, tokens, chunk, 1),
          [&](size_t bytes) { return model.backend->allocate(bytes); }),
      decoder_(*model.spec, *model.weights, *model.backend),
      table_(kv_.make_table()) {}

Rows WindowRunner::compute(std::span<const TokenId> next, Wanted wanted, AttentionWatcher* watcher) {
  CHECK(kv_.reserve(table_, done_ + uint32_t(next.size())));
  Batch batch;
  batch.add(next, done_, wanted == Wanted::all_rows ? Batch::Logits::all : Batch::Logits::last);
  KvCache::FlatTables flat;
  const PageTable* tables[] = {&table_};
  const Rows logits = decoder_.forward(batch.view(), layout_, kv_.view(tables, flat), watcher);
  done_ += uint32_t(next.size());
  kv_.release_behind_window(table_, done_);
  return logits;
}

void WindowRunner::restart() {
  kv_.release(table_, {}, 0, KvCache::Reason::forgotten);
  done_ = 0;
}

}  // namespace quire
