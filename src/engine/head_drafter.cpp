// Follows launches with the head, and drafts for all requests of a launch in one pass a token (or a
// block).
#include "engine/head_drafter.h"

#include <algorithm>
#include <numeric>

#include "engine/draft_counts.h"

namespace moxie {
namespace {

// Pages that the longest sequence and the drafts behind it have.
int32_t pages_of_sequence(const DraftHead::Options& options) {
  return ceil_div(options.max_positions, options.page_tokens) + 1;
}

// Bytes of the lists of a pass.
uint64_t list_bytes(const DraftHead::Options& options, uint64_t max_num_seqs) {
  const auto rows = static_cast<uint64_t>(options.max_rows);
  const uint64_t ids = PackedCopy::padded(rows * (kMostDrafts + 1));
  if (options.device == DeviceKind::kCpu) return ids;
  const auto stride = static_cast<uint64_t>(pages_of_sequence(options));
  return ids + 9 * PackedCopy::padded(rows + 1) + PackedCopy::padded(max_num_seqs * kMostDrafts) +
         PackedCopy::padded(std::min(rows, max_num_seqs) * stride);
}

}  // namespace

void HeadDrafter::Pass::clear() {
  for (auto* list :
       {&tokens, &positions, &last_visible, &seq_idx, &row_offsets, &table, &features, &drawn})
    list->clear();
  row_offsets.push_back(0);
  seqs.clear();
  table_stride = 0;
}

void HeadDrafter::Pass::begin_sequence(SeqId seq) {
  seqs.push_back(seq);
  row_offsets.push_back(size());
}

void HeadDrafter::Pass::add(int32_t token, int32_t position, int32_t feature) {
  tokens.push_back(token);
  positions.push_back(position);
  last_visible.push_back(position);
  seq_idx.push_back(static_cast<int32_t>(seqs.size()) - 1);
  row_offsets.back() = size();
  features.push_back(feature);
}

Result<std::unique_ptr<HeadDrafter>> HeadDrafter::create(Engine& engine) {
  const DraftCheckpoint* checkpoint = engine.draft_checkpoint();
  CHECK(checkpoint != nullptr, "the engine was not loaded for a head");
  auto head = DraftHead::load(*checkpoint, engine.config(), engine.weights(), engine.kernels(),
                              engine.device(), engine.stream(), engine.draft_options());
  if (!head) return fail(std::move(head.error()));
  auto copy = PackedCopy::create(
      engine.device(),
      list_bytes((*head)->options(), static_cast<uint64_t>(engine.options().max_num_seqs)));
  if (!copy) return fail(std::move(copy.error()));
  auto ids = engine.device().allocate_host(4ull * (kMostDrafts + 1) *
                                           static_cast<uint64_t>((*head)->options().max_rows));
  if (!ids) return fail(std::move(ids.error()));
  std::unique_ptr<HeadDrafter> drafter(new HeadDrafter(engine, std::move(*head), std::move(*copy)));
  drafter->host_ids_ = std::move(*ids);
  return drafter;
}

HeadDrafter::HeadDrafter(Engine& engine, std::unique_ptr<DraftHead> head, PackedCopy copy)
    : engine_(engine),
      head_(std::move(head)),
      hidden_(head_->config().hidden),
      page_tokens_(head_->options().page_tokens),
      num_own_pages_(head_->options().num_pages - engine.kv().num_full_pages()),
      most_pages_(pages_of_sequence(head_->options())),
      most_kept_(head_->options().num_kept / (2 * engine.options().max_num_seqs)),
      copy_(std::move(copy)) {
  engine_.set_follower(this);
}

// Recorded launches and passes have a head in them: this one's, once another drafter is made.
HeadDrafter::~HeadDrafter() {
  engine_.set_follower(nullptr);
  static_cast<void>(engine_.synchronize());  // a fault shows at the next launch, too
  if (engine_.graphs() != nullptr) engine_.graphs()->forget();
}

// Copies the pass to the device, with room for `num_ids` drawn ids. The tables are the pass's, or
// those of `full`.
Result<HeadDrafter::Placed> HeadDrafter::place(uint64_t num_ids, const KvLayer* full) {
  int64_t num_keys = 0;
  for (const int32_t position : pass_.last_visible) num_keys += position + 1;
  if (auto status = copy_.begin(engine_.stream()); !status) return fail(std::move(status.error()));
  Placed placed{.rows = {.batch = {.num_tokens = pass_.size(),
                                   .num_seqs = static_cast<int32_t>(pass_.seqs.size()),
                                   .positions = copy_.put(pass_.positions),
                                   .seq_idx = copy_.put(pass_.seq_idx),
                                   .row_offsets = copy_.put(pass_.row_offsets),
                                   .num_visible_keys = num_keys},
                         .tokens = copy_.put(pass_.tokens),
                         .last_visible = copy_.put(pass_.last_visible),
                         .page_table = full != nullptr ? full->page_table : copy_.put(pass_.table),
                         .table_stride = full != nullptr ? full->table_stride : pass_.table_stride},
                .features = copy_.put(pass_.features),
                .drawn = copy_.put(pass_.drawn),
                .kept = copy_.put(kept_),
                .steps = copy_.put(steps_),
                .ids = copy_.reserve(num_ids)};
  if (auto status = copy_.finish(engine_.stream()); !status) return fail(std::move(status.error()));
  return placed;
}

Status HeadDrafter::follow(const HostArrays& arrays, const Ragged& placed, const KvLayer& full) {
  const int32_t most = head_->options().max_rows;
  const size_t num_taps = head_->config().boundaries.size();
  std::vector<const float*> taps(num_taps);
  for (int32_t first = 0; first < placed.num_tokens; first += most) {
    const int32_t count = std::min(most, placed.num_tokens - first);
    for (size_t i = 0; i < num_taps; ++i) taps[i] = engine_.tap(i) + int64_t{first} * hidden_;
    head_->project(taps, count, head_->feature(0));
    if (head_->config().kind == DraftKind::kDflash) {
      Ragged part = placed;
      part.num_tokens = count;
      part.positions += first;
      part.seq_idx += first;
      head_->write_context(
          {.batch = part, .page_table = full.page_table, .table_stride = full.table_stride},
          head_->feature(0));
    } else if (auto status = follow_pairs(arrays, full, first, count); !status) {
      return status;
    }
  }
  return {};
}

// The number of the kept feature of this position; -1: it is not kept.
int32_t HeadDrafter::kept_feature(SeqId seq, uint64_t serial, int32_t position) const {
  const auto found = tails_.find(seq);
  if (found == tails_.end() || found->second.serial != serial) return -1;
  const Tail& tail = found->second;
  const int64_t size = head_->options().num_kept;
  const int32_t at = position - tail.first;
  if (at < 0 || at >= tail.count || num_kept_ - tail.place > size) return -1;
  return head_->first_kept() + static_cast<int32_t>((tail.place + at) % size);
}

// Features of the launch's tokens from `first` on, `count` of them: the rows whose next token the
// launch has, and before each sequence's first the row that waited for it. Row P takes the token at
// P + 1; that of a launch's last token is not known yet, so that its feature is kept until it is.
Status HeadDrafter::follow_pairs(const HostArrays& arrays, const KvLayer& full, int32_t first,
                                 int32_t count) {
  pass_.clear();
  steps_.clear();
  std::vector<std::pair<size_t, Tail>> tails;
  kept_.clear();
  const int32_t last = first + count;
  for (size_t s = 0; s < arrays.seqs.size(); ++s) {
    const int32_t chunk = arrays.row_offsets[s], end = arrays.row_offsets[s + 1];
    pass_.begin_sequence(arrays.seqs[s]);
    const int32_t from = std::max(first, chunk), to = std::min(last, end);
    if (from >= to) continue;
    const auto position_of = [&](int32_t i) { return arrays.positions[static_cast<size_t>(i)]; };
    const auto token_of = [&](int32_t i) { return arrays.token_ids[static_cast<size_t>(i)]; };
    if (from == chunk) {
      const int32_t before = position_of(chunk) - 1;
      const int32_t feature = kept_feature(arrays.seqs[s], arrays.serials[s], before);
      if (feature >= 0 && tails_[arrays.seqs[s]].drafted != before)
        pass_.add(token_of(chunk), before, feature);
    }
    for (int32_t i = from; i < std::min(to, end - 1); ++i)
      pass_.add(token_of(i + 1), position_of(i), i - first);
    if (to < end) continue;
    // A token and its drafts, or the end of a prompt.
    const int32_t begin = std::max(from, end - most_kept_);
    tails.push_back({s,
                     {.serial = arrays.serials[s],
                      .first = position_of(begin),
                      .count = end - begin,
                      .place = static_cast<int64_t>(kept_.size())}});
    for (int32_t i = begin; i < end; ++i) kept_.push_back(i - first);
  }
  if (on_logits_) {
    pass_.drawn.resize(pass_.tokens.size());
    std::iota(pass_.drawn.begin(), pass_.drawn.end(), 0);
  }
  auto placed = place(0, &full);
  if (!placed) return fail(std::move(placed.error()));
  if (pass_.size() > 0) {
    head_->gather(placed->features, pass_.size(), head_->g());
    head_->run_pairs(placed->rows, head_->g(), on_logits_ == nullptr);
    if (on_logits_) {
      std::vector<SeqId> seqs;
      for (const int32_t s : pass_.seq_idx) seqs.push_back(pass_.seqs[static_cast<size_t>(s)]);
      if (auto status = report(*placed, seqs, pass_.positions); !status) return status;
    }
  }
  if (kept_.empty()) return {};
  const auto num = static_cast<int64_t>(kept_.size());
  const int64_t size = head_->options().num_kept;
  if (num_kept_ % size + num > size) num_kept_ = round_up(num_kept_, size);
  head_->gather(placed->kept, static_cast<int32_t>(num),
                head_->feature(head_->first_kept() + static_cast<int32_t>(num_kept_ % size)));
  for (auto& [s, tail] : tails) {
    tail.place += num_kept_;
    tails_[arrays.seqs[s]] = tail;
  }
  num_kept_ += num;
  return {};
}

// The block tables of the asks: the target's pages, and the head's own for up to `num_more`
// positions behind the last token.
void HeadDrafter::set_tables(std::span<const Ask> asks, int32_t num_more) {
  const KvCache& kv = engine_.kv();
  int32_t stride = 1;
  const auto num_pages = [&](const Ask& ask) {
    return ceil_div(static_cast<int32_t>(ask.tokens.size()) + num_more, page_tokens_);
  };
  for (const Ask& ask : asks) stride = std::max(stride, num_pages(ask));
  if (engine_.graphs() != nullptr) stride = GraphCache::table_stride(stride, most_pages_);
  const auto width = static_cast<size_t>(stride);
  pass_.table.assign(asks.size() * width, -1);
  pass_.table_stride = stride;
  unused_windows_.resize(width);
  int32_t next = kv.num_full_pages();
  for (size_t s = 0; s < asks.size(); ++s) {
    const std::span<int32_t> table = std::span(pass_.table).subspan(s * width, width);
    kv.fill_tables(asks[s].seq, table, unused_windows_);
    for (int32_t page = 0; page < num_pages(asks[s]); ++page) {
      int32_t& entry = table[static_cast<size_t>(page)];
      if (entry < 0) entry = next++;
    }
  }
  CHECK(next - kv.num_full_pages() <= num_own_pages_);
}

void HeadDrafter::propose_all(std::span<const Ask> asks) {
  const DraftConfig& c = head_->config();
  int32_t longest = 1;
  for (const Ask& ask : asks) longest = std::max(longest, ask.limit);
  const int32_t rows_of_one = c.kind == DraftKind::kEagle3 ? 1 : std::max(c.block, longest);
  const int32_t by_pages = num_own_pages_ / draft_own_pages(c, longest, page_tokens_);
  const auto most =
      static_cast<size_t>(std::max(1, std::min(by_pages, head_->options().max_rows / rows_of_one)));
  kept_.clear();
  for (size_t at = 0; at < asks.size(); at += most) {
    const auto group = asks.subspan(at, std::min(most, asks.size() - at));
    const auto status = c.kind == DraftKind::kDflash ? propose_blocks(group) : propose_pairs(group);
    if (!status) return;  // the device has failed: the next launch says so
  }
}

Status HeadDrafter::propose_blocks(std::span<const Ask> asks) {
  const DraftConfig& c = head_->config();
  pass_.clear();
  steps_.clear();
  std::vector<int32_t> positions;
  std::vector<SeqId> seqs;
  // The block is drafted whole, but no more of it is drawn than is asked for.
  int32_t longest = on_logits_ ? c.block - 1 : 1;
  for (const Ask& ask : asks) longest = std::max(longest, std::min(ask.limit, c.block - 1));
  for (const Ask& ask : asks) {
    const auto anchor = static_cast<int32_t>(ask.tokens.size()) - 1;
    pass_.begin_sequence(ask.seq);
    for (int32_t i = 0; i < c.block; ++i) {
      if (i > 0 && i <= longest) {
        pass_.drawn.push_back(pass_.size());
        seqs.push_back(ask.seq);
        positions.push_back(anchor + i);
      }
      pass_.add(i == 0 ? ask.tokens.back() : c.mask_id, anchor + i);
      pass_.last_visible.back() = anchor + c.block - 1;
    }
  }
  set_tables(asks, c.block);
  auto placed = place(pass_.drawn.size());
  if (!placed) return fail(std::move(placed.error()));
  auto status = run(*placed, longest, [&] {
    head_->run_block(placed->rows);
    head_->draw(placed->drawn, static_cast<int32_t>(pass_.drawn.size()), placed->ids);
  });
  if (!status) return status;
  if (status = read_ids(placed->ids, pass_.drawn.size()); !status) return status;
  if (on_logits_)
    if (status = report(*placed, seqs, positions); !status) return status;
  const auto* ids = host_ids_.as<int32_t>();
  const auto of_one = static_cast<size_t>(longest);
  for (size_t s = 0; s < asks.size(); ++s) {
    const auto count = std::min(of_one, static_cast<size_t>(asks[s].limit));
    for (size_t i = 0; i < count; ++i) asks[s].drafts->push_back(ids[s * of_one + i]);
  }
  return {};
}

Status HeadDrafter::propose_pairs(std::span<const Ask> all) {
  const DraftConfig& c = head_->config();
  const bool is_peagle = c.kind == DraftKind::kPeagle;
  pass_.clear();
  steps_.clear();
  std::vector<Ask> asks;
  std::vector<int32_t> positions;  // of the rows drawn, for report(); -1: of masks
  std::vector<SeqId> seqs;
  int32_t longest = 1;
  for (const Ask& ask : all) {
    const auto position = static_cast<int32_t>(ask.tokens.size()) - 2;
    const int32_t feature = kept_feature(ask.seq, engine_.kv().serial(ask.seq), position);
    if (feature < 0) continue;
    tails_[ask.seq].drafted = position;
    asks.push_back(ask);
    longest = std::max(longest, ask.limit);
    pass_.begin_sequence(ask.seq);
    for (int32_t i = 0; i < (is_peagle ? ask.limit : 1); ++i) {
      pass_.drawn.push_back(pass_.size());
      positions.push_back(i == 0 ? position : -1);
      seqs.push_back(ask.seq);
      if (i == 0)
        pass_.add(ask.tokens.back(), position, feature);
      else
        pass_.add(c.mask_id, position + i, head_->mask_feature());
    }
  }
  if (asks.empty()) return {};
  for (int32_t step = 1; step < (is_peagle ? 1 : longest); ++step)
    for (const int32_t position : pass_.positions) steps_.push_back(position + step);
  set_tables(asks, longest);
  const auto num_rows = static_cast<size_t>(pass_.size());
  const size_t num_ids = is_peagle ? num_rows : num_rows * static_cast<size_t>(longest);
  auto placed = place(num_ids);
  if (!placed) return fail(std::move(placed.error()));
  Status reported;
  auto status = run(*placed, longest, [&] {
    head_->gather(placed->features, pass_.size(), head_->g());
    head_->run_pairs(placed->rows, head_->g());
    head_->draw(placed->drawn, pass_.size(), placed->ids);
    if (on_logits_) reported = report(*placed, seqs, positions);
    if (!is_peagle) roll_out(*placed, longest);
  });
  if (status) status = std::move(reported);
  if (!status) return status;
  if (status = read_ids(placed->ids, num_ids); !status) return status;
  const auto* ids = host_ids_.as<int32_t>();
  size_t at = 0;
  for (size_t s = 0; s < asks.size(); ++s) {
    for (int32_t i = 0; i < asks[s].limit; ++i)
      asks[s].drafts->push_back(is_peagle ? ids[at++] : ids[static_cast<size_t>(i) * num_rows + s]);
  }
  return {};
}

// Gives a small pass to the stream as a graph. The lists lie where they did in the last pass of the
// same sizes.
Status HeadDrafter::run(Placed& placed, int32_t longest, const std::function<void()>& work) {
  GraphCache* graphs = engine_.graphs();
  const int32_t num_tokens = placed.rows.batch.num_tokens;
  if (graphs == nullptr || on_logits_ || num_tokens > GraphCache::kMostTokens) {
    work();
    return {};
  }
  placed.rows.batch.num_visible_keys = 0;  // not part of the key
  return graphs->run({longest, num_tokens, placed.rows.batch.num_seqs, 0, placed.rows.table_stride},
                     work);
}

// EAGLE-3: the drafts behind the first, one pass a token, without the host. A sequence has one row,
// so that only tokens, positions and features differ from the first pass. The tables are those of
// the first pass, whose own pages hold what the passes before wrote.
void HeadDrafter::roll_out(const Placed& placed, int32_t longest) {
  const int32_t n = placed.rows.batch.num_tokens;
  DraftRows rows = placed.rows;
  for (int32_t step = 1; step < longest; ++step) {
    head_->outputs_to_features(n);
    rows.tokens = placed.ids + int64_t{step - 1} * n;
    rows.batch.positions = rows.last_visible = placed.steps + int64_t{step - 1} * n;
    if (rows.batch.num_visible_keys > 0) rows.batch.num_visible_keys += n;
    head_->run_pairs(rows, head_->g());
    head_->draw(placed.drawn, n, placed.ids + int64_t{step} * n);
  }
}

// Waits for the drawn ids, which are in host_ids_ then.
Status HeadDrafter::read_ids(const int32_t* ids, size_t count) {
  auto status = engine_.device().copy_to_host(host_ids_.data(), ids, 4 * count, engine_.stream());
  if (status) status = engine_.stream().synchronize();
  if (!status) return status;
  copy_.is_idle();
  return {};
}

// Tells on_logits_ of the rows drawn that have a position.
Status HeadDrafter::report(const Placed& placed, std::span<const SeqId> seqs,
                           std::span<const int32_t> positions) {
  const auto vocab = static_cast<size_t>(head_->config().draft_vocab);
  const auto most = static_cast<size_t>(DraftHead::max_logit_rows());
  for (size_t at = 0; at < positions.size(); at += most) {
    const size_t count = std::min(most, positions.size() - at);
    const float* logits = head_->logits(placed.drawn + at, static_cast<int32_t>(count));
    logits_.resize(count * vocab);
    auto status =
        engine_.device().copy_to_host(logits_.data(), logits, 4 * logits_.size(), engine_.stream());
    if (status) status = engine_.stream().synchronize();
    if (!status) return status;
    for (size_t i = 0; i < count; ++i)
      if (positions[at + i] >= 0)
        on_logits_(seqs[at + i], positions[at + i], logits_.data() + i * vocab);
  }
  return {};
}

}  // namespace moxie
