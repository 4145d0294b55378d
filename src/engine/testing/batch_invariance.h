// Whether an engine's logits depend on the batch: every token of some sequences alone in its
// launch, and again in chunks of random lengths among random others.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/testing/tokens.h"

namespace moxie {

struct BatchInvarianceCase {
  int num_watched = 4;   ///< sequences whose logits are compared
  int32_t length = 160;  ///< tokens of each, the window and more
  int max_others = 255;  ///< sequences beside them, of fewer tokens
  int num_rounds = 3;    ///< times that the watched sequences are fed anew
  uint32_t seed = 1;
};

struct BatchInvarianceFound {
  int64_t num_compared = 0, num_differ = 0;  ///< tokens; a bit of the logits suffices to differ
  std::string first;                         ///< that differs, and where
};

/// The engine holds max_others + num_watched sequences, and a row of logits for each token of a
/// launch.
inline BatchInvarianceFound compare_with_alone(Engine& engine, const BatchInvarianceCase& c) {
  const auto vocab = static_cast<size_t>(engine.config().vocab);
  const auto length = static_cast<size_t>(c.length);
  const int32_t most_tokens = engine.plan().max_batch_tokens;
  std::vector<float> logits(static_cast<size_t>(most_tokens) * vocab);
  const auto run = [&](std::span<const Chunk> chunks, size_t num_rows) {
    const auto done = engine.step(chunks);
    CHECK(done.has_value(), done ? "" : done.error().message());
    const auto read = engine.read_logits(std::span(logits).first(num_rows * vocab));
    CHECK(read.has_value(), read ? "" : read.error().message());
  };

  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<float>> alone;
  for (int w = 0; w < c.num_watched; ++w) {
    ids.push_back(tokens(c.length, c.seed * 1000 + static_cast<uint32_t>(w)));
    std::vector<float>& rows = alone.emplace_back();
    const SeqId seq = engine.kv().add_sequence();
    for (size_t i = 0; i < length; ++i) {
      const Chunk chunk{seq, std::span(ids.back()).subspan(i, 1), Logits::kAll};
      run({&chunk, 1}, 1);
      rows.insert(rows.end(), logits.begin(), logits.begin() + static_cast<int64_t>(vocab));
    }
    engine.kv().free_sequence(seq);
  }

  std::mt19937 random(c.seed);
  const auto up_to = [&](int64_t most) {  // 1 to most
    return 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(most));
  };
  BatchInvarianceFound found;
  struct Stream {
    SeqId seq;
    std::vector<int32_t> ids;
    int watched;  // -1: another
    size_t done = 0;
  };
  for (int round = 0; round < c.num_rounds; ++round) {
    std::vector<Stream> streams;
    for (int w = 0; w < c.num_watched; ++w)
      streams.push_back({engine.kv().add_sequence(), ids[static_cast<size_t>(w)], w});
    // Few others in the first round, up to all of them in the later ones.
    const int64_t most_others = round == 0 ? 3 : c.max_others;
    int64_t left = c.num_watched;
    while (left > 0) {
      const auto want = static_cast<size_t>(c.num_watched + up_to(most_others));
      while (streams.size() < want) {
        const auto count = static_cast<int32_t>(up_to(c.length / 4));
        streams.push_back({engine.kv().add_sequence(), tokens(count, random()), -1});
      }
      std::shuffle(streams.begin(), streams.end(), random);
      std::vector<Chunk> chunks;
      std::vector<std::pair<const Stream*, size_t>> parts;  // and its first token
      size_t room = static_cast<size_t>(most_tokens), num_rows = 0;
      for (Stream& stream : streams) {
        const size_t rest = std::min(stream.ids.size() - stream.done, room);
        if (rest == 0 || (stream.watched >= 0 && random() % 4 == 0)) continue;
        // One token as in decoding, or a piece of a prompt.
        const size_t count =
            random() % 2 == 0 ? 1 : static_cast<size_t>(up_to(static_cast<int64_t>(rest)));
        chunks.push_back(
            {stream.seq, std::span(stream.ids).subspan(stream.done, count), Logits::kAll});
        parts.emplace_back(&stream, stream.done);
        room -= count, num_rows += count;
        stream.done += count;
      }
      if (chunks.empty()) continue;
      run(chunks, num_rows);
      size_t row = 0;
      for (size_t i = 0; i < chunks.size(); ++i) {
        const auto& [stream, first] = parts[i];
        for (size_t t = 0; t < chunks[i].tokens.size(); ++t, ++row) {
          if (stream->watched < 0) continue;
          const float* expected = &alone[static_cast<size_t>(stream->watched)][(first + t) * vocab];
          ++found.num_compared;
          if (std::memcmp(expected, &logits[row * vocab], 4 * vocab) == 0) continue;
          if (found.num_differ++ > 0) continue;
          const auto at = std::mismatch(expected, expected + vocab, &logits[row * vocab]);
          std::ostringstream text;
          text << "sequence " << stream->watched << ", token " << first + t << ", in a chunk of "
               << chunks[i].tokens.size() << " of a launch of " << num_rows << " tokens of "
               << chunks.size() << " sequences: logit " << at.first - expected << " is "
               << *at.second << ", alone " << *at.first;
          found.first = text.str();
        }
      }
      std::erase_if(streams, [&](const Stream& stream) {
        if (stream.done < stream.ids.size()) return false;
        left -= stream.watched >= 0 ? 1 : 0;
        engine.kv().free_sequence(stream.seq);
        return true;
      });
    }
    for (const Stream& stream : streams) engine.kv().free_sequence(stream.seq);
  }
  return found;
}

}  // namespace moxie
