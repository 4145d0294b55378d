// Events of the KV cache without sockets: payloads against those of vLLM's structs, and what
// readers hold after merged batches, replays and snapshots.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <set>

#include "server/kv_event_publisher.h"

namespace moxie {
namespace {

using Kind = CacheEvent::Kind;
using Events = std::vector<CacheEvent>;

CacheEvent stored(uint64_t hash, uint64_t parent, std::vector<int32_t> tokens,
                  std::string salt = {}) {
  return {.kind = Kind::kStored,
          .hash = hash,
          .parent = parent,
          .tokens = std::move(tokens),
          .salt = std::move(salt)};
}
CacheEvent removed(uint64_t hash) { return {.kind = Kind::kRemoved, .hash = hash}; }
CacheEvent cleared() { return {.kind = Kind::kCleared}; }

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) {
    for (const int shift : {4, 0}) {
      text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> shift & 15];
    }
  }
  return text;
}

// Encoded by msgspec from vLLM's structs with the time 1.5. It writes the map of ten entries
// in the longer form de000a, we in the shorter form 8a.
TEST(KvEventTest, PayloadsAreThoseOfVllm) {
  const Events chain = {stored(0x1122334455667788, 0, {0, 1}),
                        stored(0x99aabbccddeeff00, 0x1122334455667788, {2, 3})};
  EXPECT_EQ(
      hex(encode_batch(chain, 1.5)),
      "93cb3ff8000000000000918aa474797065ab426c6f636b53746f726564ac626c6f636b5f6861736865739"
      "2cf1122334455667788cf99aabbccddeeff00b1706172656e745f626c6f636b5f68617368c0a9746f6b656e"
      "5f6964739400010203aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da3475055a96c6f"
      "72615f6e616d65c0a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f"
      "617474656e74696f6e00");
  EXPECT_EQ(
      hex(encode_batch(Events{removed(0x1122334455667788)}, 1.5)),
      "93cb3ff80000000000009184a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391"
      "cf1122334455667788a66d656469756da3475055a967726f75705f6964780000");
  EXPECT_EQ(hex(encode_batch(Events{cleared()}, 1.5)),
            "93cb3ff80000000000009181a474797065b0416c6c426c6f636b73436c656172656400");
}

// Decodes with nlohmann-json, which knows MessagePack, and sees the same as the events say.
Json decoded(const Events& events) { return Json::from_msgpack(encode_batch(events, 2.5)); }

TEST(KvEventTest, OneEventIsOneChainWithoutGaps) {
  const Json batch =
      decoded({stored(5, 0, {1, 2}, "salt"), stored(6, 5, {3, 4}), stored(9, 7, {5, 6}), removed(5),
               removed(6), cleared(), stored(5, 0, {1, 2})});
  EXPECT_EQ(batch[0], 2.5);
  EXPECT_EQ(batch[2], 0);
  const Json& events = batch[1];
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["block_hashes"], Json({5, 6}));
  EXPECT_EQ(events[0]["token_ids"], Json({1, 2, 3, 4}));
  EXPECT_EQ(events[0]["parent_block_hash"], nullptr);
  EXPECT_EQ(events[0]["extra_keys"], Json::parse(R"([["salt"], null])"));
  EXPECT_EQ(events[1]["block_hashes"], Json::array({9}));
  EXPECT_EQ(events[1]["parent_block_hash"], 7);
  EXPECT_FALSE(events[1].contains("extra_keys"));
  EXPECT_EQ(events[2]["block_hashes"], Json({5, 6}));
  EXPECT_EQ(events[3], Json({{"type", "AllBlocksCleared"}}));
  EXPECT_EQ(events[4]["type"], "BlockStored");
  for (const Json& event : events) EXPECT_EQ(event.begin().key(), "type");
}

TEST(KvEventTest, NumbersAndSizesOfAllWidthsAreRead) {
  Events events;
  const std::vector<int32_t> tokens = {0, 127, 128, 255, 256, 65535, 65536, INT32_MAX};
  for (uint64_t i = 0; i < 70000; ++i) events.push_back(stored(i + 1, i, tokens));
  events.push_back(stored(UINT64_MAX, 0, tokens, std::string(300, 's')));
  events.push_back(stored(3, 70000, tokens, std::string(40, 's')));
  const Json all = decoded(events)[1];
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0]["block_hashes"].size(), 70000u);
  EXPECT_EQ(all[0]["block_hashes"][69999], 70000u);
  EXPECT_EQ(all[0]["token_ids"].size(), 70000u * tokens.size());
  EXPECT_EQ(std::vector<int32_t>(all[0]["token_ids"].end() - 8, all[0]["token_ids"].end()), tokens);
  EXPECT_EQ(all[1]["block_hashes"][0], UINT64_MAX);
  EXPECT_EQ(all[1]["extra_keys"][0][0], std::string(300, 's'));
  EXPECT_EQ(all[2]["extra_keys"][0][0], std::string(40, 's'));
}

// What a reader holds. It fails for what cannot be: strict batches come from a cache.
struct Reader {
  std::set<uint64_t> held;
  void read(const Events& events) {
    for (const CacheEvent& event : events) {
      if (event.kind == Kind::kCleared) {
        held.clear();
      } else if (event.kind == Kind::kStored) {
        CHECK(held.insert(event.hash).second);
      } else {
        CHECK(held.erase(event.hash) == 1);
      }
    }
  }
  // A payload, as a reader of the socket sees it.
  void read(const std::string& payload) {
    const Json batch = Json::from_msgpack(payload);
    for (const Json& event : batch[1]) {
      if (event["type"] == "AllBlocksCleared") {
        held.clear();
        continue;
      }
      for (const Json& hash : event["block_hashes"]) {
        if (event["type"] == "BlockStored") {
          RC_ASSERT(held.insert(hash.get<uint64_t>()).second);
        } else {
          RC_ASSERT(held.erase(hash.get<uint64_t>()) == 1u);
        }
      }
    }
  }
};

// Events that a cache may tell, of a few pages, so that they come and go.
Events random_events(std::set<uint64_t>* held) {
  Events events;
  const int count = *rc::gen::inRange(0, 20);
  for (int i = 0; i < count; ++i) {
    const auto hash = *rc::gen::inRange<uint64_t>(1, 12);
    if (*rc::gen::inRange(0, 15) == 0) {
      held->clear();
      events.push_back(cleared());
    } else if (held->erase(hash) > 0) {
      events.push_back(removed(hash));
    } else {
      held->insert(hash);
      events.push_back(stored(hash, hash / 2, {static_cast<int32_t>(hash)}));
    }
  }
  return events;
}

RC_GTEST_PROP(KvEventTest, AMergedBatchLeavesTheSamePages, ()) {
  std::set<uint64_t> held;
  Reader reader, other;
  const Events before = random_events(&held);
  reader.read(before);
  other.read(before);
  Events events = random_events(&held);
  reader.read(events);
  merge_events(&events);
  other.read(events);
  RC_ASSERT(reader.held == held);
  RC_ASSERT(other.held == held);
  std::set<uint64_t> told;
  for (const CacheEvent& event : events) {
    RC_ASSERT(event.kind == Kind::kCleared || told.insert(event.hash).second);
  }
}

RC_GTEST_PROP(KvEventTest, AFullQueueLosesNothing, ()) {
  KvEventQueue queue(*rc::gen::inRange<size_t>(1, 4));
  std::set<uint64_t> held;
  Reader reader;
  uint64_t num_pushed = 0, num_taken = 0;
  const auto take = [&] {
    for (const auto& batch : queue.take()) {
      reader.read(batch.events);
      ++num_taken;
    }
  };
  for (int i = *rc::gen::inRange(0, 30); i > 0; --i) {
    queue.push({0, random_events(&held)});
    ++num_pushed;
    if (*rc::gen::inRange(0, 5) == 0) take();
  }
  take();
  RC_ASSERT(reader.held == held);
  RC_ASSERT(num_taken + queue.num_merged() == num_pushed);
}

TEST(KvEventTest, AFullQueueIsBoundedByThePages) {
  KvEventQueue queue(1);
  for (int i = 0; i < 100000; ++i) queue.push({0, {stored(7, 0, {1}), removed(7)}});
  const auto batches = queue.take();
  ASSERT_EQ(batches.size(), 1u);
  EXPECT_LT(batches.front().events.size(), 5000u);
  EXPECT_EQ(queue.num_merged(), 99999u);
}

// A reader that loses batches and asks for them holds the same as one that loses none.
RC_GTEST_PROP(KvEventTest, AReplayHealsHoweverOldTheGapIs, ()) {
  KvEventHistory history(*rc::gen::inRange<size_t>(0, 5), *rc::gen::element(200, 100000));
  std::set<uint64_t> held;
  Reader reader;
  uint64_t next = 0, num_batches = 0;
  for (int i = *rc::gen::inRange(1, 40); i > 0; --i) {
    const auto batch = history.add(random_events(&held), 1);
    RC_ASSERT(batch.number == num_batches++);
    if (*rc::gen::inRange(0, 3) > 0) continue;  // lost
    for (const auto& replayed : history.from(next, 1)) {
      RC_ASSERT(replayed.number >= next);
      reader.read(*replayed.payload);
      next = replayed.number + 1;
    }
    RC_ASSERT(next == num_batches);
    RC_ASSERT(reader.held == held);
    RC_ASSERT(history.from(next, 1).empty());
  }
}

TEST(KvEventTest, ASnapshotIsMadeAnewOnlyWhenItsFollowersAreGone) {
  KvEventHistory history(3, 1 << 20);
  EXPECT_TRUE(history.from(0, 1).empty());
  for (uint64_t i = 1; i <= 5; ++i) history.add({stored(i, i - 1, {1})}, 1);  // 2, 3, 4 are kept
  const auto numbers = [&](uint64_t first) {
    std::vector<uint64_t> found;
    for (const auto& batch : history.from(first, 1)) found.push_back(batch.number);
    return found;
  };
  using Numbers = std::vector<uint64_t>;
  EXPECT_EQ(numbers(2), (Numbers{2, 3, 4}));
  EXPECT_EQ(numbers(4), Numbers{4});
  EXPECT_EQ(history.num_snapshots(), 0u);
  EXPECT_EQ(numbers(1), Numbers{4});  // the whole, which stands for 0 to 4
  history.add({removed(5)}, 1);
  EXPECT_EQ(numbers(0), (Numbers{4, 5}));
  EXPECT_EQ(history.num_snapshots(), 1u);
  for (int i = 0; i < 3; ++i) history.add({cleared()}, 1);  // 6, 7, 8
  EXPECT_EQ(numbers(0), Numbers{8});
  EXPECT_EQ(history.num_snapshots(), 2u);
}

TEST(KvEventTest, ASnapshotTellsParentsFirst) {
  CacheMirror mirror;
  mirror.apply({stored(1, 0, {1}, "s"), stored(2, 1, {2}), stored(3, 2, {3}), stored(8, 4, {8})});
  mirror.apply({removed(1), removed(2)});
  mirror.apply({stored(2, 1, {2}), stored(1, 0, {1}, "s")});
  const Events events = mirror.snapshot();
  std::vector<uint64_t> hashes;
  for (const CacheEvent& event : events) hashes.push_back(event.hash);
  EXPECT_EQ(hashes, (std::vector<uint64_t>{0, 1, 2, 3, 8}));
  EXPECT_EQ(events[0].kind, Kind::kCleared);
  EXPECT_EQ(events[1].salt, "s");
  EXPECT_EQ(events[3].tokens, std::vector<int32_t>{3});
}

TEST(KvEventTest, ConfigurationsAreVllms) {
  const auto defaults = parse_kv_event_config("{}");
  ASSERT_TRUE(defaults.has_value());
  EXPECT_FALSE(defaults->publishes());
  EXPECT_EQ(kv_event_config_json(*defaults, defaults->endpoint, defaults->replay_endpoint),
            Json::parse(R"({"enable_kv_cache_events": false, "publisher": "null",
                            "endpoint": "tcp://*:5557", "replay_endpoint": null,
                            "buffer_steps": 10000, "hwm": 100000, "max_queue_size": 100000,
                            "topic": ""})"));
  const std::string all = R"({"enable_kv_cache_events": true, "publisher": "zmq",
      "endpoint": "tcp://host:1", "replay_endpoint": "ipc:///tmp/r", "buffer_steps": 0, "hwm": 1,
      "max_queue_size": 2, "topic": "kv@a@b"})";
  const auto config = parse_kv_event_config(all);
  ASSERT_TRUE(config.has_value());
  EXPECT_TRUE(config->publishes());
  EXPECT_EQ(kv_event_config_json(*config, config->endpoint, config->replay_endpoint),
            Json::parse(all));
  EXPECT_TRUE(parse_kv_event_config(R"({"enable_kv_cache_events": true})")->publishes());
  EXPECT_FALSE(parse_kv_event_config(R"({"publisher": "zmq"})")->publishes());
  EXPECT_FALSE(parse_kv_event_config(R"({"enable_kv_cache_events": true, "publisher": "null"})")
                   ->publishes());
}

TEST(KvEventTest, EndpointsAreBoundOrConnectedAsVllmDecides) {
  const std::map<std::string, bool> binds = {
      {"tcp://*:5557", true},    {"tcp://127.0.0.1:*", true}, {"tcp://[::]:5557", true},
      {"ipc:///tmp/a", true},    {"inproc://a", true},        {"tcp://127.0.0.1:5557", false},
      {"tcp://router:0", false},
  };
  for (const auto& [endpoint, expected] : binds) {
    EXPECT_EQ(KvEventConfig{.endpoint = endpoint}.binds(), expected) << endpoint;
  }
}

TEST(KvEventTest, WrongConfigurationsNameTheField) {
  const std::map<std::string, std::string> wrong = {
      {"", "JSON object"},
      {"[]", "JSON object"},
      {"{", "JSON object"},
      {R"({"enable_kv_cache_event": true})", "'enable_kv_cache_event'"},
      {R"({"enable_kv_cache_events": 1})", "enable_kv_cache_events"},
      {R"({"publisher": "kafka"})", "publisher"},
      {R"({"publisher": 1})", "publisher"},
      {R"({"endpoint": null})", "endpoint"},
      {R"({"endpoint": "*:5557"})", "endpoint"},
      {R"({"endpoint": "tcp://"})", "endpoint"},
      {R"({"endpoint": "tcp://*:65536"})", "1 to 65535"},
      {R"({"endpoint": "tcp://*:99999"})", "1 to 65535"},
      {R"({"endpoint": "tcp://*:-1"})", "1 to 65535"},
      {R"({"endpoint": "tcp://*:"})", "1 to 65535"},
      {R"({"endpoint": "tcp://host"})", "1 to 65535"},
      {R"({"replay_endpoint": "tcp://[::]:5558x"})", "1 to 65535"},
      {R"({"replay_endpoint": ""})", "replay_endpoint"},
      {R"({"replay_endpoint": 5558})", "replay_endpoint"},
      {R"({"buffer_steps": -1})", "buffer_steps"},
      {R"({"buffer_steps": 1e3})", "buffer_steps"},
      {R"({"buffer_steps": 18446744073709551615})", "buffer_steps"},
      {R"({"hwm": 0})", "hwm"},
      {R"({"hwm": 2147483648})", "hwm"},
      {R"({"max_queue_size": "1"})", "max_queue_size"},
      {R"({"topic": null})", "topic"},
  };
  for (const auto& [text, named] : wrong) {
    const auto config = parse_kv_event_config(text);
    ASSERT_FALSE(config.has_value()) << text;
    EXPECT_NE(config.error().what.find(named), std::string::npos) << config.error().what;
    EXPECT_EQ(config.error().where, "--kv-events-config");
  }
}

}  // namespace
}  // namespace moxie
