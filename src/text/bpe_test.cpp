// The tokenizer against o200k's vectors from each kind of file, against a plain merging algorithm
// on random vocabularies, on any bytes, and on files that are wrong.
#include "text/bpe.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "text/bpe_detokenizer.h"
#include "text/bpe_testing.h"
#include "text/splitter.h"
#include "text/utf8.h"

namespace moxie {
namespace {

using nlohmann::ordered_json;
using testing::key_of;
using testing::Merge;
using testing::o200k;
using testing::Splits;
using Ids = std::vector<int32_t>;

constexpr int32_t kO200kRanks = 199998;

// A vocabulary for a tokenizer.json or for GGUF arrays: tokens by id.
struct Vocab {
  std::vector<std::string> tokens;
  std::vector<Merge> merges;
  std::vector<std::pair<std::string, int32_t>> special;

  int32_t id_of(std::string_view bytes) const {
    const auto it = std::find(tokens.begin(), tokens.end(), bytes);
    return it == tokens.end() ? -1 : static_cast<int32_t>(it - tokens.begin());
  }
  /// Adds the token that the merge makes, unless it is there.
  Vocab& merge(const std::string& left, const std::string& right) {
    if (id_of(left + right) < 0) tokens.push_back(left + right);
    merges.emplace_back(left, right);
    return *this;
  }
};

Vocab byte_vocab() {
  Vocab vocab;
  for (int byte = 0; byte < 256; ++byte) vocab.tokens.emplace_back(1, static_cast<char>(byte));
  return vocab;
}

enum class MergeForm { kStrings, kPairs };

ordered_json json_of(const Vocab& vocab, MergeForm form, bool ignore_merges) {
  ordered_json json;
  json["version"] = "1.0";
  json["normalizer"] = nullptr;
  json["added_tokens"] = ordered_json::array();
  for (const auto& [name, id] : vocab.special) {
    json["added_tokens"].push_back({{"id", id}, {"content", name}, {"special", true}});
  }
  std::unordered_map<std::string, int32_t> ids;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    ids[key_of(vocab.tokens[i])] = static_cast<int32_t>(i);
  }
  nlohmann::json merges = nlohmann::json::array();
  for (const auto& [left, right] : vocab.merges) {
    if (form == MergeForm::kPairs) {
      merges.push_back({key_of(left), key_of(right)});
    } else {
      merges.push_back(key_of(left) + " " + key_of(right));
    }
  }
  nlohmann::json model = {{"type", "BPE"}, {"ignore_merges", ignore_merges}};
  model["vocab"] = ids;
  model["merges"] = std::move(merges);
  json["model"] = std::move(model);
  return json;
}

Tokenizer make(const Vocab& vocab, bool ignore_merges = true,
               MergeForm form = MergeForm::kStrings) {
  auto made = Tokenizer::from_tokenizer_json(json_of(vocab, form, ignore_merges).dump());
  CHECK(made.has_value(), made.error().message());
  return std::move(*made);
}

Vocab o200k_vocab(Splits splits) {
  Vocab vocab;
  for (int32_t id = 0; id < kO200kRanks; ++id) vocab.tokens.emplace_back(o200k().token_bytes(id));
  vocab.merges = testing::merges_of_ranks(o200k(), kO200kRanks, splits);
  for (int32_t id = kO200kRanks; id <= 200018; ++id) {
    vocab.special.emplace_back(o200k().token_bytes(id), id);
  }
  return vocab;
}

void expect_all_cases(const Tokenizer& tokenizer) {
  const auto ordinary = testing::read_cases("tokenizer/o200k_cases.json");
  ASSERT_GE(ordinary.size(), 404u);
  for (const auto& c : ordinary) {
    EXPECT_EQ(tokenizer.encode(c.text), c.ids) << c.text;
    EXPECT_EQ(tokenizer.decode(c.ids).value(), c.text);
  }
  const auto special = testing::read_cases("tokenizer/o200k_special_cases.json");
  ASSERT_GE(special.size(), 4u);
  for (const auto& c : special) {
    EXPECT_EQ(tokenizer.encode(c.text, SpecialMode::kAll), c.ids) << c.text;
    EXPECT_EQ(tokenizer.decode(c.ids).value(), c.text);
    EXPECT_NE(tokenizer.encode(c.text), c.ids);
  }
}

TEST(Tokenizer, PassesO200kCasesFromTiktoken) { expect_all_cases(o200k()); }

TEST(Tokenizer, PassesO200kCasesFromTokenizerJson) {
  expect_all_cases(make(o200k_vocab(Splits::kAll), true, MergeForm::kPairs));
}

TEST(Tokenizer, PassesO200kCasesFromGgufParts) {
  const Vocab vocab = o200k_vocab(Splits::kMerged);
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  std::vector<int32_t> types(vocab.tokens.size(), static_cast<int32_t>(GgufTokenType::kNormal));
  for (const std::string& token : vocab.tokens) tokens.push_back(key_of(token));
  for (const auto& [name, id] : vocab.special) {
    tokens.push_back(name);
    types.push_back(static_cast<int32_t>(GgufTokenType::kControl));
  }
  for (const auto& [left, right] : vocab.merges)
    merges.push_back(key_of(left) + " " + key_of(right));
  while (tokens.size() < 201088) {
    tokens.push_back("[PAD" + std::to_string(tokens.size()) + "]");
    types.push_back(static_cast<int32_t>(GgufTokenType::kUnused));
  }
  const auto tokenizer = Tokenizer::from_gguf_parts(tokens, types, merges);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message();
  expect_all_cases(*tokenizer);
  EXPECT_EQ(tokenizer->vocab_size(), 201088);
  EXPECT_EQ(tokenizer->token_bytes(201087), "");
  EXPECT_EQ(tokenizer->decode(Ids{201087}).value(), "");
  EXPECT_EQ(tokenizer->encode("[PAD201087]", SpecialMode::kAll), o200k().encode("[PAD201087]"));
}

TEST(Tokenizer, KnowsTheHarmonyTokens) {
  EXPECT_EQ(o200k().vocab_size(), 201088);
  EXPECT_EQ(o200k().special_id("<|start|>"), 200006);
  EXPECT_EQ(o200k().special_id("<|call|>"), 200012);
  EXPECT_EQ(o200k().special_id("<|reserved_201087|>"), 201087);
  EXPECT_EQ(o200k().special_id("<|refusal|>"), std::nullopt);
  EXPECT_EQ(o200k().special_id("start"), std::nullopt);
  EXPECT_FALSE(o200k().is_special(199997));
  for (int32_t id = kO200kRanks; id < 201088; ++id) {
    EXPECT_TRUE(o200k().is_special(id));
    const std::string name(o200k().token_bytes(id));
    EXPECT_EQ(o200k().special_id(name), id);
    EXPECT_EQ(o200k().encode(name, SpecialMode::kAll), Ids{id});
  }
  EXPECT_FALSE(o200k().is_special(201088));
  EXPECT_FALSE(o200k().is_special(-1));
  // Two names for one id.
  EXPECT_EQ(o200k().token_bytes(200018), "<|endofprompt|>");
  EXPECT_EQ(o200k().encode("<|reserved_200018|>", SpecialMode::kAll), Ids{200018});
}

TEST(Tokenizer, DecodeNamesTheIdOutsideTheVocabulary) {
  for (const int32_t bad : {-1, 201088, INT32_MAX, INT32_MIN}) {
    const auto decoded = o200k().decode(Ids{1, 2, bad});
    ASSERT_FALSE(decoded.has_value());
    EXPECT_NE(decoded.error().message().find(std::to_string(bad)), std::string::npos);
    EXPECT_EQ(decoded.error().where, "ids[2]");
    EXPECT_EQ(o200k().token_bytes(bad), "");
  }
}

TEST(Tokenizer, AnyBytesComeBack) {
  EXPECT_TRUE(rc::check("decode(encode(x)) == x", [] {
    const auto bytes =
        *rc::gen::resize(800, rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 256)));
    const std::string text(bytes.begin(), bytes.end());
    RC_ASSERT(o200k().decode(o200k().encode(text)).value() == text);
    RC_ASSERT(o200k().decode(o200k().encode(text, SpecialMode::kAll)).value() == text);
  }));
}

TEST(Tokenizer, EveryTokenComesBack) {
  size_t num_whole_pieces = 0;
  for (int32_t id = 0; id < kO200kRanks; ++id) {
    const std::string_view bytes = o200k().token_bytes(id);
    const Ids ids = o200k().encode(bytes);
    ASSERT_EQ(o200k().decode(ids).value(), bytes);
    if (piece_end(bytes, 0) != bytes.size()) continue;
    ASSERT_EQ(ids, Ids{id});
    ++num_whole_pieces;
  }
  EXPECT_GT(num_whole_pieces, 190000u);
}

TEST(Tokenizer, SpecialStringsInOrdinaryTextStayText) {
  const std::string text = "a<|end|><|start|>system<|message|>b";
  for (const int32_t id : o200k().encode(text)) EXPECT_LT(id, kO200kRanks);
  const Ids all = o200k().encode(text, SpecialMode::kAll);
  EXPECT_EQ(all, (Ids{64, 200007, 200006, 17360, 200008, 65}));
  // Halves of names, and names inside halves.
  Ids expected = o200k().encode("<|");
  expected.push_back(200007);
  for (const int32_t id : o200k().encode("|>")) expected.push_back(id);
  EXPECT_EQ(o200k().encode("<|<|end|>|>", SpecialMode::kAll), expected);
  EXPECT_EQ(o200k().encode("<|end|", SpecialMode::kAll), o200k().encode("<|end|"));
}

// The space before a special token ends its text, so that alternative 6 takes both.
TEST(Tokenizer, TextEndsAtASpecialToken) {
  const Ids spaces = o200k().encode("  ");
  Ids expected = spaces;
  expected.push_back(200007);
  EXPECT_EQ(o200k().encode("  <|end|>", SpecialMode::kAll), expected);
}

TEST(Tokenizer, MergesInTheOrderOfTheList) {
  // By ids ab comes first, by the list bc.
  Vocab vocab = byte_vocab();
  vocab.tokens.insert(vocab.tokens.end(), {"ab", "bc"});
  vocab.merges = {{"b", "c"}, {"a", "b"}};
  for (const MergeForm form : {MergeForm::kStrings, MergeForm::kPairs}) {
    const Tokenizer tokenizer = make(vocab, false, form);
    EXPECT_EQ(tokenizer.encode("abc"), (Ids{'a', 257}));
    EXPECT_EQ(tokenizer.encode("aab"), (Ids{'a', 256}));
    EXPECT_EQ(tokenizer.encode("bcbc"), (Ids{257, 257}));
  }
}

TEST(Tokenizer, HonoursIgnoreMerges) {
  Vocab vocab = byte_vocab();
  vocab.merge("a", "b").merge("b", "c");
  vocab.tokens.push_back("abc");  // 258: no merge makes it
  vocab.merge("x", "y").merge("xy", "z");
  EXPECT_EQ(make(vocab, true).encode("abc"), (Ids{258}));
  EXPECT_EQ(make(vocab, true).encode("abcd"), (Ids{256, 'c', 'd'}));
  const Tokenizer strict = make(vocab, false);
  for (int twice = 0; twice < 2; ++twice) {  // the second time from memory
    EXPECT_EQ(strict.encode("abc"), (Ids{256, 'c'}));
    EXPECT_EQ(strict.encode("xyz"), (Ids{260}));
  }
}

TEST(Tokenizer, TakesSpecialTokensAtAnyId) {
  Vocab vocab = byte_vocab();
  vocab.special = {
      {"<|start|>", 300}, {"<|start|>x", 301}, {"<|end|>", 256}, {"\xE2\x82\xAC", 302}};
  const Tokenizer tokenizer = make(vocab);
  EXPECT_EQ(tokenizer.vocab_size(), 303);
  EXPECT_EQ(tokenizer.special_id("<|start|>"), 300);
  EXPECT_EQ(tokenizer.encode("<|start|>y<|start|>x<|end|>\xE2\x82\xAC", SpecialMode::kAll),
            (Ids{300, 'y', 301, 256, 302}));
  EXPECT_EQ(tokenizer.encode("<|end|>").size(), 7u);
  EXPECT_EQ(tokenizer.decode(Ids{299}).value(), "");  // an id without a token
}

TEST(Tokenizer, ASpecialTokenOfTheVocabularyIsNoOrdinaryText) {
  Vocab vocab = byte_vocab();
  vocab.merge("h", "i").merge("hi", "d");
  vocab.special = {{"hid", 257}};
  const Tokenizer tokenizer = make(vocab);
  EXPECT_EQ(tokenizer.encode("hid"), (Ids{256, 'd'}));
  EXPECT_EQ(tokenizer.encode("hid", SpecialMode::kAll), (Ids{257}));
}

TEST(Tokenizer, AnAddedTokenNeedNotBeSpecial) {
  ordered_json json = json_of(byte_vocab(), MergeForm::kPairs, true);
  json["added_tokens"] = {{{"id", 256}, {"content", "abra"}, {"special", false}}};
  const auto tokenizer = Tokenizer::from_tokenizer_json(json.dump()).value();
  EXPECT_EQ(tokenizer.encode("xabra", SpecialMode::kAll), (Ids{'x', 256}));
  EXPECT_EQ(tokenizer.encode("abra").size(), 4u);
  EXPECT_FALSE(tokenizer.is_special(256));
  EXPECT_EQ(tokenizer.special_id("abra"), std::nullopt);
}

TEST(Tokenizer, KeysOfTheFileMayComeInAnyOrder) {
  Vocab vocab = byte_vocab();
  vocab.merge("a", "b");
  vocab.special = {{"<|end|>", 257}};
  const ordered_json json = json_of(vocab, MergeForm::kPairs, true);
  const nlohmann::json sorted = json;  // merges before vocab
  ordered_json model_first;
  model_first["model"] = json["model"];
  model_first["added_tokens"] = json["added_tokens"];
  for (const std::string& text : {sorted.dump(2), model_first.dump()}) {
    const auto tokenizer = Tokenizer::from_tokenizer_json(text);
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message();
    EXPECT_EQ(tokenizer->encode("ab<|end|>", SpecialMode::kAll), (Ids{256, 257}));
  }
}

// Random vocabularies: the three ways of merging (by length of the piece) against a plain one.
TEST(Tokenizer, MergesAsThePlainAlgorithmDoes) {
  EXPECT_TRUE(rc::check("encode equals plain merging", [] {
    Vocab vocab = byte_vocab();
    std::vector<std::string> parts = {"a", "b", "c"};
    const int num_merges = *rc::gen::inRange(1, 40);
    std::map<Merge, int64_t> ranks;
    for (int i = 0; i < num_merges; ++i) {
      const Merge merge = {*rc::gen::elementOf(parts), *rc::gen::elementOf(parts)};
      if (ranks.contains(merge) || merge.first.size() + merge.second.size() > 64) continue;
      if (vocab.id_of(merge.first + merge.second) >= 0) continue;
      ranks[merge] = static_cast<int64_t>(vocab.merges.size());
      vocab.merge(merge.first, merge.second);
      parts.push_back(vocab.tokens.back());
    }
    const Tokenizer tokenizer = make(vocab, false);
    const size_t num_bytes = *rc::gen::element<size_t>(1, 2, 7, 60, 95, 96, 97, 400, 70000);
    std::mt19937 random(*rc::gen::arbitrary<uint32_t>());
    const uint32_t num_letters = *rc::gen::inRange(1, 4);
    std::string piece;
    while (piece.size() < num_bytes) piece += static_cast<char>('a' + random() % num_letters);
    Ids expected;
    for (const std::string& part :
         testing::merged_naively(piece, [&](const std::string&left, const std::string&right) {
           const auto it = ranks.find({left, right});
           return it == ranks.end() ? -1 : it->second;
         })) {
      expected.push_back(vocab.id_of(part));
    }
    RC_ASSERT(tokenizer.encode(piece) == expected);
  }));
}

// Quadratic work on any of these would take hours.
TEST(Tokenizer, LongRunsComeBack) {
  constexpr size_t kBytes = size_t{3} << 20;
  for (const std::string part : {"a", " ", "\n", "!", "1", "aB", "\xE4\xB8\xAD",
                                 "\xE4\xB8\xAD"
                                 "A",
                                 "\xCC\x81", "\xFF", "<|", "'s"}) {
    std::string text;
    while (text.size() < kBytes) text += part;
    const Ids ids = o200k().encode(text, SpecialMode::kAll);
    EXPECT_EQ(o200k().decode(ids).value(), text);
    EXPECT_LT(ids.size(), text.size() + 1);
  }
}

TEST(Tokenizer, ThreadsMayShareIt) {
  Vocab vocab = byte_vocab();
  vocab.merge("t", "h").merge("th", "e").merge("c", "a").merge("ca", "t");
  const Tokenizer tokenizer = make(vocab, false);
  const std::string text = "the cat, then the cats";
  std::vector<Ids> ids(4);
  std::vector<std::thread> threads;
  for (Ids& mine : ids) threads.emplace_back([&] { mine = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const Ids& mine : ids) EXPECT_EQ(mine, tokenizer.encode(text));
}

// Files that are wrong, and what the error has to say.
TEST(TokenizerFiles, TiktokenFaultsAreNamed) {
  const std::pair<std::string, std::string> faults[] = {
      {"", "byte 0x00"},
      {"IQ== 0\nIg==\n", "line 2"},
      {"IQ== 0\nI!== 1\n", "base64"},
      {"IQ= 0\n", "base64"},
      {"IQ=== 0\n", "base64"},
      {"==== 0\n", "base64"},
      {"IQ==IQ== 0\n", "base64"},
      {" 0\n", "base64"},
      {"IQ== x\n", "rank"},
      {"IQ== 1x\n", "rank"},
      {"IQ== -1\n", "-1"},
      {"IQ== 99999999999999999999\n", "rank"},
      {"IQ== 4294967295\n", "4294967295"},
      {"IQ== 0\nIg== 0\n", "two tokens"},
      {"IQ== 0\nIQ== 1\n", "same bytes"},
      {std::string(4096, 'A') + " 0\n", "bytes"},
  };
  for (const auto& [text, expected] : faults) {
    const auto made = Tokenizer::from_tiktoken(text, "x.tiktoken");
    ASSERT_FALSE(made.has_value()) << text;
    EXPECT_NE(made.error().message().find(expected), std::string::npos)
        << text << ": " << made.error().message();
    EXPECT_NE(made.error().message().find("x.tiktoken"), std::string::npos);
  }
}

TEST(TokenizerFiles, TokenizerJsonFaultsAreNamed) {
  Vocab vocab = byte_vocab();
  vocab.merge("a", "b");
  const ordered_json good = json_of(vocab, MergeForm::kPairs, true);
  const auto with = [&](const std::string& pointer, const ordered_json& value) {
    ordered_json json = good;
    json[ordered_json::json_pointer(pointer)] = value;
    return json.dump();
  };
  ordered_json without_merges = good;
  without_merges["model"].erase("merges");
  const ordered_json end = {{"id", 300}, {"content", "<|end|>"}, {"special", true}};
  const auto added = [&](const char* key, const ordered_json& value) {
    ordered_json token = end;
    token[key] = value;
    return with("/added_tokens", ordered_json::array({end, token}));
  };
  const std::pair<std::string, std::string> faults[] = {
      {"", "JSON"},
      {"{}", "vocab"},
      {"[]", "vocab"},
      {"null", "vocab"},
      {"{\"model\":{\"vocab\":3}}", "vocab"},
      {with("/model/type", "WordPiece"), "WordPiece"},
      {with("/model/vocab/zz", -1), "-1"},
      {with("/model/vocab/zz", 2097152), "2097152"},
      {with("/model/vocab/zz", UINT64_MAX), "zz"},
      {with("/model/vocab/zz", 7), "two tokens"},
      {with("/model/vocab/zz", 1.5), "wrong kind"},
      {with("/model/vocab/zz", "1"), "wrong kind"},
      {with("/model/vocab/zz", nullptr), "wrong kind"},
      {with("/model/vocab/zz", ordered_json::array({1})), "zz"},
      {with("/model/vocab", ordered_json::object({{"a", 0}})), "\"b\" is not in"},
      {without_merges.dump(), "no model.merges"},
      {with("/model/merges", nullptr), "no model.merges"},
      {with("/model/merges", ordered_json::array()), ""},  // single bytes, as the file says
      {with("/model/merges/0", "ab"), "merge 0"},
      {with("/model/merges/0", "a b c"), "merge 0"},
      {with("/model/merges/0", "a q\xC3\xA9"), "not in the vocabulary"},
      {with("/model/merges/0", "a \xE4\xB8\xAD"), "alphabet"},
      {with("/model/merges/0", ordered_json::array({"a"})), "merge 0"},
      {with("/model/merges/0", ordered_json::array({"a", "b", "c"})), "merge 0"},
      {with("/model/merges/0", ordered_json::array({"a", ""})), "merge 0"},
      {with("/model/merges/0", 5), "wrong kind"},
      {with("/model/end_of_word_suffix", "</w>"), "end_of_word_suffix"},
      {added("content", "<|start|>"), ""},  // two names for one id are fine
      {added("id", 301), "two ids"},
      {added("id", -1), "lacks"},
      {added("id", "7"), "lacks"},
      {added("id", 2.5), "integer"},
      {added("id", 4000000), "4000000"},
      {added("content", ""), "lacks"},
      {added("content", std::string(2000, 'x')), "2000"},
      {with("/added_tokens/0", {{"id", 97}, {"content", "b"}}), "two"},
      {std::string(1000000, '['), "nested"},
      {"{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}", "nested"},
  };
  ASSERT_TRUE(Tokenizer::from_tokenizer_json(good.dump()).has_value());
  for (const auto& [text, expected] : faults) {
    const auto made = Tokenizer::from_tokenizer_json(text, "x.json");
    if (expected.empty()) {
      EXPECT_TRUE(made.has_value()) << made.error().message();
      continue;
    }
    ASSERT_FALSE(made.has_value()) << text.substr(0, 200) << " should say " << expected;
    EXPECT_NE(made.error().message().find(expected), std::string::npos)
        << expected << ": " << made.error().message();
    EXPECT_NE(made.error().message().find("x.json"), std::string::npos);
  }
}

TEST(TokenizerFiles, ACutTokenizerJsonIsRefused) {
  Vocab vocab = byte_vocab();
  vocab.merge("a", "b");
  vocab.special = {{"<|end|>", 300}};
  const std::string whole = json_of(vocab, MergeForm::kPairs, true).dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    ASSERT_FALSE(Tokenizer::from_tokenizer_json(whole.substr(0, size)).has_value()) << size;
  }
}

TEST(TokenizerFiles, GgufFaultsAreNamed) {
  std::vector<std::string> tokens;
  for (const std::string& token : byte_vocab().tokens) tokens.push_back(key_of(token));
  std::vector<int32_t> types(256, 1);
  ASSERT_TRUE(Tokenizer::from_gguf_parts(tokens, types, {}).has_value());
  ASSERT_TRUE(Tokenizer::from_gguf_parts(tokens, {}, {}).has_value());

  const auto message = [&](const std::vector<std::string>& merges) {
    const auto made = Tokenizer::from_gguf_parts(tokens, types, merges);
    return made.has_value() ? "" : made.error().message();
  };
  EXPECT_NE(message({"a b"}).find("not in the vocabulary"), std::string::npos);
  EXPECT_NE(message({"ab"}).find("merge 0"), std::string::npos);
  types[5] = 77;
  EXPECT_NE(message({}).find("77"), std::string::npos);
  types.pop_back();
  EXPECT_NE(message({}).find("255 token types for 256"), std::string::npos);
}

TEST(TokenizerFiles, LoadTellsTheFormatsApart) {
  const std::string dir = ::testing::TempDir();
  const auto load = [&](const std::string& text) {
    const std::string path = dir + "/moxie_tokenizer_test_file";
    FILE* file = fopen(path.c_str(), "wb");
    CHECK(file != nullptr, path);
    fwrite(text.data(), 1, text.size(), file);
    fclose(file);
    return Tokenizer::load(path);
  };
  EXPECT_EQ(load(testing::o200k_tiktoken()).value().encode("Hello"), o200k().encode("Hello"));
  EXPECT_EQ(load(json_of(byte_vocab(), MergeForm::kPairs, true).dump(1)).value().encode("A"),
            Ids{'A'});
  EXPECT_NE(load("").error().message().find("the file is empty"), std::string::npos);
  EXPECT_FALSE(Tokenizer::load(dir + "/no such file").has_value());
  EXPECT_FALSE(Tokenizer::load(dir).has_value());
}

TEST(Detokenizer, StreamsWhatTheWholeDecodesTo) {
  EXPECT_TRUE(rc::check("the parts put together are the repaired whole", [] {
    const auto ids = *rc::gen::container<Ids>(
        rc::gen::oneOf(rc::gen::inRange(0, 256), rc::gen::inRange(0, 201088)));
    IncrementalDetokenizer detokenizer(o200k());
    std::string streamed;
    for (const int32_t id : ids) {
      const std::string text = detokenizer.push(id);
      RC_ASSERT(is_valid_utf8(text));
      RC_ASSERT(detokenizer.held_bytes() <= 3u);
      streamed += text;
    }
    streamed += detokenizer.flush();
    RC_ASSERT(streamed == repaired_utf8(o200k().decode(ids).value()));
    RC_ASSERT(detokenizer.flush().empty());
  }));
}

TEST(Detokenizer, HoldsACharacterUntilItIsWhole) {
  const std::string text = "\xF0\x9F\x91\xA9\xE2\x80\x8D\xE4\xBD\xA0";
  Tokenizer bytes = make(byte_vocab());
  IncrementalDetokenizer detokenizer(bytes);
  Ids ids = bytes.encode(text);
  ASSERT_EQ(ids.size(), text.size());
  std::vector<std::string> parts;
  for (const int32_t id : ids) parts.push_back(detokenizer.push(id));
  EXPECT_EQ(parts, (std::vector<std::string>{"", "", "", "\xF0\x9F\x91\xA9", "", "", "\xE2\x80\x8D",
                                             "", "", "\xE4\xBD\xA0"}));
  EXPECT_EQ(detokenizer.push(0xE4), "");
  EXPECT_EQ(detokenizer.push('x'), "\xEF\xBF\xBDx");
  EXPECT_EQ(detokenizer.push(0xC3), "");
  EXPECT_EQ(detokenizer.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.push('y'), "y");
}

TEST(Detokenizer, LeavesSpecialTokensOutWhenAsked) {
  const Ids ids = o200k().encode("<|start|>hi<|end|>", SpecialMode::kAll);
  IncrementalDetokenizer shown(o200k());
  IncrementalDetokenizer hidden(o200k(), true);
  std::string shown_text;
  std::string hidden_text;
  for (const int32_t id : ids) {
    shown_text += shown.push(id);
    hidden_text += hidden.push(id);
  }
  EXPECT_EQ(shown_text, "<|start|>hi<|end|>");
  EXPECT_EQ(hidden_text, "hi");
  EXPECT_EQ(hidden.push(-5), "");
}

}  // namespace
}  // namespace moxie
