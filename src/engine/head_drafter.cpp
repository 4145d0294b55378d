// Follows launches with the head, and drafts for all requests of a launch in one pass a token (or a
// block).
#include "engine/head_drafter.h"

#include <algorithm>

#include "core/threads.h"

namespace moxie {
namespace {

// Features kept of a sequence's last launch: of a token and its drafts, or the end of a prompt.
constexpr int32_t kMostTail = 65;

int32_t argmax(const float* row, int32_t n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; ++i)
    if (row[i] > row[best]) best = i;
  return best;
}

}  // namespace

void HeadDrafter::Pass::clear() {
  for (auto* list : {&tokens, &positions, &last_visible, &seq_idx, &row_offsets}) list->clear();
  row_offsets.push_back(0);
  seqs.clear();
  g.clear();
}

void HeadDrafter::Pass::begin_sequence(SeqId seq) {
  seqs.push_back(seq);
  row_offsets.push_back(size());
}

void HeadDrafter::Pass::add(int32_t token, int32_t position, const float* feature, int32_t hidden) {
  tokens.push_back(token);
  positions.push_back(position);
  last_visible.push_back(position);
  seq_idx.push_back(static_cast<int32_t>(seqs.size()) - 1);
  row_offsets.back() = size();
  if (feature != nullptr) g.insert(g.end(), feature, feature + hidden);
}

DraftRows HeadDrafter::Pass::rows() {
  int64_t num_keys = 0;
  for (const int32_t position : last_visible) num_keys += position + 1;
  return {.batch = {.num_tokens = size(),
                    .num_seqs = static_cast<int32_t>(seqs.size()),
                    .positions = positions.data(),
                    .seq_idx = seq_idx.data(),
                    .row_offsets = row_offsets.data(),
                    .num_visible_keys = num_keys},
          .tokens = tokens.data(),
          .last_visible = last_visible.data(),
          .page_table = table.data(),
          .table_stride = table_stride};
}

Result<std::unique_ptr<HeadDrafter>> HeadDrafter::create(Engine& engine) {
  const DraftCheckpoint* checkpoint = engine.draft_checkpoint();
  CHECK(checkpoint != nullptr, "the engine was not loaded for a head");
  auto head = DraftHead::load(*checkpoint, engine.config(), engine.weights(), engine.kernels(),
                              engine.device(), engine.stream(), engine.draft_options());
  if (!head) return fail(std::move(head.error()));
  return std::unique_ptr<HeadDrafter>(new HeadDrafter(engine, std::move(*head)));
}

HeadDrafter::HeadDrafter(Engine& engine, std::unique_ptr<DraftHead> head)
    : engine_(engine),
      head_(std::move(head)),
      hidden_(head_->config().hidden),
      page_tokens_(head_->options().page_tokens),
      num_own_pages_(head_->options().num_pages - engine.kv().num_full_pages()) {
  const auto floats = static_cast<size_t>(head_->options().max_rows) * static_cast<size_t>(hidden_);
  g_.resize(floats);
  y_.resize(floats);
  logits_.resize(static_cast<size_t>(DraftHead::max_logit_rows()) *
                 static_cast<size_t>(head_->config().draft_vocab));
  engine_.set_follower(this);
}

HeadDrafter::~HeadDrafter() { engine_.set_follower(nullptr); }

void HeadDrafter::follow(const HostArrays& arrays) {
  const auto num_tokens = static_cast<int32_t>(arrays.token_ids.size());
  if (num_tokens == 0) return;
  std::vector<const float*> taps;
  for (size_t i = 0; i < head_->config().boundaries.size(); ++i) taps.push_back(engine_.tap(i));
  head_->project(taps, num_tokens, g_.data());
  pass_.clear();
  pass_.table.assign(arrays.full_tables.begin(), arrays.full_tables.end());
  pass_.table_stride = arrays.table_stride;
  if (head_->config().kind == DraftKind::kDflash)
    follow_context(arrays, num_tokens);
  else
    follow_pairs(arrays, num_tokens);
}

void HeadDrafter::follow_context(const HostArrays& arrays, int32_t num_tokens) {
  for (size_t s = 0; s < arrays.seqs.size(); ++s) {
    pass_.begin_sequence(arrays.seqs[s]);
    for (int32_t i = arrays.row_offsets[s]; i < arrays.row_offsets[s + 1]; ++i)
      pass_.add(arrays.token_ids[static_cast<size_t>(i)], arrays.positions[static_cast<size_t>(i)],
                nullptr, hidden_);
  }
  CHECK(pass_.size() == num_tokens);
  head_->write_context(pass_.rows(), g_.data());
}

// Row P takes the token at P + 1. That of a launch's last token is not known yet: its feature is
// kept until it is.
void HeadDrafter::follow_pairs(const HostArrays& arrays, int32_t num_tokens) {
  const auto token_at = [&](int32_t i) { return arrays.token_ids[static_cast<size_t>(i)]; };
  const auto g_at = [&](int32_t i) { return g_.data() + int64_t{i} * hidden_; };
  for (size_t s = 0; s < arrays.seqs.size(); ++s) {
    const SeqId seq = arrays.seqs[s];
    const int32_t begin = arrays.row_offsets[s], end = arrays.row_offsets[s + 1];
    pass_.begin_sequence(seq);
    if (begin == end) continue;
    const int32_t first = arrays.positions[static_cast<size_t>(begin)];
    if (const auto found = tails_.find(seq); found != tails_.end()) {
      const Tail& tail = found->second;
      const int32_t at = first - 1 - tail.first;
      const bool is_kept =
          at >= 0 && std::cmp_less(at, tail.g.size() / static_cast<size_t>(hidden_));
      if (is_kept && tail.drafted != first - 1)
        pass_.add(token_at(begin), first - 1, tail.g.data() + int64_t{at} * hidden_, hidden_);
    }
    for (int32_t i = begin; i + 1 < end; ++i)
      pass_.add(token_at(i + 1), first + i - begin, g_at(i), hidden_);
    const int32_t count = std::min(end - begin, kMostTail);
    keep_tail(seq, first + (end - begin) - count, count, g_at(end - count));
  }
  CHECK(pass_.size() <= num_tokens);
  if (pass_.size() == 0) return;
  head_->run_pairs(pass_.rows(), pass_.g.data(), y_.data(), on_logits_ == nullptr);
  if (!on_logits_) return;
  std::vector<int32_t> rows;
  std::vector<SeqId> seqs;
  for (int32_t i = 0; i < pass_.size(); ++i) {
    rows.push_back(i);
    seqs.push_back(pass_.seqs[static_cast<size_t>(pass_.seq_idx[static_cast<size_t>(i)])]);
  }
  report(rows, seqs, pass_.positions);
}

void HeadDrafter::keep_tail(SeqId seq, int32_t first, int32_t count, const float* g) {
  Tail& tail = tails_[seq];
  tail.first = first;
  tail.drafted = -1;
  tail.g.assign(g, g + int64_t{count} * hidden_);
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
  for (size_t at = 0; at < asks.size(); at += most) {
    const auto group = asks.subspan(at, std::min(most, asks.size() - at));
    if (c.kind == DraftKind::kDflash)
      propose_blocks(group);
    else
      propose_pairs(group);
  }
}

void HeadDrafter::propose_blocks(std::span<const Ask> asks) {
  const DraftConfig& c = head_->config();
  pass_.clear();
  std::vector<int32_t> rows, ids, positions;
  std::vector<SeqId> seqs;
  for (const Ask& ask : asks) {
    const auto anchor = static_cast<int32_t>(ask.tokens.size()) - 1;
    pass_.begin_sequence(ask.seq);
    for (int32_t i = 0; i < c.block; ++i) {
      if (i > 0) {
        rows.push_back(pass_.size());
        seqs.push_back(ask.seq);
        positions.push_back(anchor + i);
      }
      pass_.add(i == 0 ? ask.tokens.back() : c.mask_id, anchor + i, nullptr, hidden_);
      pass_.last_visible.back() = anchor + c.block - 1;
    }
  }
  set_tables(asks, c.block);
  head_->run_block(pass_.rows(), y_.data());
  draw(rows, &ids);
  if (on_logits_) report(rows, seqs, positions);
  const auto of_one = static_cast<size_t>(c.block - 1);
  for (size_t s = 0; s < asks.size(); ++s) {
    const auto count = std::min(of_one, static_cast<size_t>(asks[s].limit));
    for (size_t i = 0; i < count; ++i) asks[s].drafts->push_back(ids[s * of_one + i]);
  }
}

void HeadDrafter::propose_pairs(std::span<const Ask> all) {
  const DraftConfig& c = head_->config();
  pass_.clear();
  std::vector<Ask> asks;
  std::vector<int32_t> last_rows;  // P-EAGLE: all rows that draft
  for (const Ask& ask : all) {
    const auto position = static_cast<int32_t>(ask.tokens.size()) - 2;
    const auto found = tails_.find(ask.seq);
    if (found == tails_.end() || position < found->second.first) continue;
    Tail& tail = found->second;
    const auto at = static_cast<size_t>(position - tail.first) * static_cast<size_t>(hidden_);
    if (at >= tail.g.size()) continue;
    asks.push_back(ask);
    pass_.begin_sequence(ask.seq);
    last_rows.push_back(pass_.size());
    pass_.add(ask.tokens.back(), position, tail.g.data() + at, hidden_);
    tail.drafted = position;
    for (int32_t i = 1; c.kind == DraftKind::kPeagle && i < ask.limit; ++i) {
      last_rows.push_back(pass_.size());
      pass_.add(c.mask_id, position + i, head_->mask_feature(), hidden_);
    }
  }
  if (asks.empty()) return;
  int32_t longest = 1;
  for (const Ask& ask : asks) longest = std::max(longest, ask.limit);
  set_tables(asks, longest);
  head_->run_pairs(pass_.rows(), pass_.g.data(), y_.data());
  std::vector<int32_t> ids;
  draw(last_rows, &ids);
  if (on_logits_) {
    std::vector<int32_t> rows, positions;
    for (size_t s = 0; s < asks.size(); ++s) {
      rows.push_back(pass_.row_offsets[s]);
      positions.push_back(static_cast<int32_t>(asks[s].tokens.size()) - 2);
    }
    report(rows, pass_.seqs, positions);
  }
  if (c.kind == DraftKind::kPeagle) {
    size_t at = 0;
    for (const Ask& ask : asks)
      for (int32_t i = 0; i < ask.limit; ++i) ask.drafts->push_back(ids[at++]);
    return;
  }
  for (size_t s = 0; s < asks.size(); ++s) asks[s].drafts->push_back(ids[s]);
  roll_out(std::move(asks), longest);
}

// EAGLE-3: the drafts behind the first, one pass a token for all asks that want more. The tables
// are those of the first pass, whose own pages hold what the passes before wrote.
void HeadDrafter::roll_out(std::vector<Ask> asks, int32_t longest) {
  std::vector<int32_t> rows, ids;
  for (int32_t step = 1; step < longest; ++step) {
    // The features of the last pass, whose rows are those of `asks`.
    head_->to_feature(y_.data(), static_cast<int32_t>(asks.size()));
    const auto width = static_cast<std::ptrdiff_t>(pass_.table_stride);
    std::vector<Ask> left;
    rows.clear();
    pass_.clear();
    for (size_t i = 0; i < asks.size(); ++i) {
      const Ask& ask = asks[i];
      if (ask.limit <= step) continue;
      const auto from = static_cast<std::ptrdiff_t>(i),
                 to = static_cast<std::ptrdiff_t>(left.size());
      if (from != to)
        std::copy_n(pass_.table.begin() + from * width, width, pass_.table.begin() + to * width);
      rows.push_back(pass_.size());
      left.push_back(ask);
      pass_.begin_sequence(ask.seq);
      pass_.add(ask.drafts->back(), static_cast<int32_t>(ask.tokens.size()) - 2 + step,
                y_.data() + from * hidden_, hidden_);
    }
    asks = std::move(left);
    head_->run_pairs(pass_.rows(), pass_.g.data(), y_.data());
    draw(rows, &ids);
    for (size_t i = 0; i < asks.size(); ++i) asks[i].drafts->push_back(ids[i]);
  }
}

// The best ids of these rows of y_, as the target's ids.
void HeadDrafter::draw(std::span<const int32_t> rows, std::vector<int32_t>* ids) {
  const int32_t vocab = head_->config().draft_vocab;
  ids->resize(rows.size());
  const auto most = static_cast<size_t>(DraftHead::max_logit_rows());
  for (size_t at = 0; at < rows.size(); at += most) {
    const auto group = rows.subspan(at, std::min(most, rows.size() - at));
    head_->logits(y_.data(), group, logits_.data());
    auto best = [&](int64_t i, int) {
      const int32_t id = argmax(logits_.data() + i * vocab, vocab);
      (*ids)[at + static_cast<size_t>(i)] = head_->target_id(id);
    };
    engine_.stream().pool->run(static_cast<int64_t>(group.size()), best);
  }
}

void HeadDrafter::report(std::span<const int32_t> rows, std::span<const SeqId> seqs,
                         std::span<const int32_t> positions) {
  const auto most = static_cast<size_t>(DraftHead::max_logit_rows());
  for (size_t at = 0; at < rows.size(); at += most) {
    const auto group = rows.subspan(at, std::min(most, rows.size() - at));
    head_->logits(y_.data(), group, logits_.data());
    for (size_t i = 0; i < group.size(); ++i)
      on_logits_(seqs[at + i], positions[at + i],
                 logits_.data() + static_cast<std::ptrdiff_t>(i) * head_->config().draft_vocab);
  }
}

}  // namespace moxie
