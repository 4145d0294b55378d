// The GGUF reader: sound files, and every kind of damage by name.
#include "weights/gguf.h"

#include <gtest/gtest.h>

#include <cstring>

#include "weights/testing/gguf_writer.h"

namespace moxie {
namespace {

constexpr uint32_t kF32 = 0, kQ80 = 8, kMxfp4 = 39;

GgufFile read(const std::string& bytes) {
  return read_gguf(
      MappedFile::borrow("x.gguf", std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

std::string all_messages(const GgufFile& file) {
  std::string out;
  for (const Fault& fault : file.contents.faults.all()) out += fault.message() + "\n";
  return out;
}

GgufWriter sound() {
  GgufWriter writer;
  writer.add("general.architecture", "gpt-oss");
  writer.add("n", 24u);
  writer.add("eps", 0.5f);
  writer.add("tokens", std::vector<std::string>{"a", "", "ccc"});
  writer.add("types", std::vector<int32_t>{1, -3, 5});
  writer.tensor("t.f32", kF32, {2, 3}, std::string(24, 'f'));
  writer.tensor("t.q8", kQ80, {2, 64}, std::string(136, 'q'));
  writer.tensor("t.mx", kMxfp4, {3, 2, 32}, std::string(102, 'm'));
  return writer;
}

TEST(Gguf, ReadsPairsAndTensorsOfBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    GgufWriter writer = sound();
    writer.version = version;
    const std::string bytes = writer.bytes();
    const GgufFile file = read(bytes);
    ASSERT_EQ(all_messages(file), "");
    EXPECT_TRUE(file.is_header_whole);
    EXPECT_EQ(file.version, version);
    EXPECT_EQ(file.text("general.architecture"), "gpt-oss");
    EXPECT_EQ(file.integer("n"), 24);
    EXPECT_EQ(file.real("eps"), 0.5);
    EXPECT_EQ(file.texts("tokens"), (std::vector<std::string>{"a", "", "ccc"}));
    EXPECT_EQ(file.integers("types"), (std::vector<int32_t>{1, -3, 5}));
    ASSERT_EQ(file.contents.tensors.size(), 3u);
    const FileTensor& mx = file.contents.tensors[2];
    EXPECT_EQ(mx.name, "t.mx");
    EXPECT_EQ(mx.dtype, DType::kMXFP4);
    EXPECT_EQ(mx.shape.to_string(), "[3, 2, 32]");
    EXPECT_EQ(mx.bytes, 102u);
    EXPECT_EQ(bytes.substr(mx.offset, mx.bytes), std::string(102, 'm'));
    EXPECT_EQ(bytes.substr(file.contents.tensors[1].offset, 136), std::string(136, 'q'));
  }
}

TEST(Gguf, ReadsEveryValueType) {
  using W = GgufWriter;
  GgufWriter writer;
  writer.pair("u8", 0, W::raw<uint8_t>(200));
  writer.pair("i8", 1, W::raw<int8_t>(-100));
  writer.pair("u16", 2, W::raw<uint16_t>(60000));
  writer.pair("i16", 3, W::raw<int16_t>(-30000));
  writer.pair("u32", 4, W::raw<uint32_t>(4000000000u));
  writer.pair("i32", 5, W::raw<int32_t>(-2000000000));
  writer.pair("f32", 6, W::raw<float>(1.25f));
  writer.pair("bool", 7, W::raw<uint8_t>(1));
  writer.pair("u64", 10, W::raw<uint64_t>(uint64_t{1} << 40));
  writer.pair("i64", 11, W::raw<int64_t>(-(int64_t{1} << 40)));
  writer.pair("f64", 12, W::raw<double>(-2.5));
  writer.pair("nested", 9,
              W::raw<uint32_t>(9) + W::raw<uint64_t>(2) + W::raw<uint32_t>(0) +
                  W::raw<uint64_t>(1) + "x" + W::raw<uint32_t>(0) + W::raw<uint64_t>(2) + "yz");
  writer.pair("last", 4, W::raw<uint32_t>(7));
  const std::string bytes = writer.bytes();
  const GgufFile file = read(bytes);
  ASSERT_EQ(all_messages(file), "");
  EXPECT_EQ(file.integer("u8"), 200);
  EXPECT_EQ(file.integer("i8"), -100);
  EXPECT_EQ(file.integer("u16"), 60000);
  EXPECT_EQ(file.integer("i16"), -30000);
  EXPECT_EQ(file.integer("u32"), 4000000000);
  EXPECT_EQ(file.integer("i32"), -2000000000);
  EXPECT_EQ(file.real("f32"), 1.25);
  EXPECT_EQ(std::get<bool>(*file.find("bool")), true);
  EXPECT_EQ(file.integer("u64"), int64_t{1} << 40);
  EXPECT_EQ(file.integer("i64"), -(int64_t{1} << 40));
  EXPECT_EQ(file.real("f64"), -2.5);
  EXPECT_EQ(file.integer("last"), 7);
  EXPECT_EQ(file.integer("f64"), std::nullopt);
  EXPECT_EQ(file.integer("absent"), std::nullopt);
}

TEST(Gguf, ObeysTheAlignmentKey) {
  GgufWriter writer;
  writer.alignment = 128;
  writer.tensor("a", kF32, {1}, std::string(4, 'a'));
  writer.tensor("b", kF32, {1}, std::string(4, 'b'));
  const std::string bytes = writer.bytes();
  const GgufFile file = read(bytes);
  ASSERT_EQ(all_messages(file), "");
  EXPECT_EQ(file.contents.tensors[1].offset % 128, 0u);
  EXPECT_EQ(bytes.substr(file.contents.tensors[1].offset, 4), "bbbb");
}

struct Damage {
  const char* name;
  std::string bytes;
  std::string tensor, found, expected;  // parts of the first fault
};

std::string patched(std::string bytes, size_t at, uint64_t value, size_t width = 8) {
  std::memcpy(bytes.data() + at, &value, width);
  return bytes;
}

template <typename Change>
std::string changed(Change&& change) {
  GgufWriter writer = sound();
  change(writer);
  return writer.bytes();
}

std::vector<Damage> damages() {
  using W = GgufWriter;
  const std::string whole = sound().bytes();
  const uint64_t huge = uint64_t{1} << 60;
  return {
      {"other_magic", "GGML" + whole.substr(4), "", "another magic", "\"GGUF\""},
      {"empty", "", "", "another magic", "\"GGUF\""},
      {"version_1", patched(whole, 4, 1, 4), "", "version 1", "version 2 or 3"},
      {"big_endian", patched(whole, 4, 0x03000000, 4), "", "a big-endian file", "little-endian"},
      {"cut_in_the_counts", whole.substr(0, 20), "", "a header that does not end", "a whole file"},
      {"tensors_2_to_60", patched(whole, 8, huge), "", "1152921504606846976 tensors", "at most"},
      {"pairs_2_to_60", patched(whole, 16, huge), "", "1152921504606846976 metadata pairs",
       "at most"},
      {"key_length_2_to_60", patched(whole, 24, huge), "", "metadata pair 0 that does not end",
       "a whole file"},
      {"unknown_value_type", changed([](W& w) { w.pair("k", 13, ""); }), "",
       "the value type 13 of k", "a type of 0 to 12"},
      {"text_longer_than_the_file", changed([&](W& w) { w.pair("k", 8, W::raw(huge)); }), "",
       "the value of k", "a whole file"},
      {"array_of_2_to_60_bytes",
       changed([&](W& w) { w.pair("k", 9, W::raw<uint32_t>(0) + W::raw(huge)); }), "",
       "the array k of 1152921504606846976 values", "a whole file"},
      {"array_size_overflows",
       changed([&](W& w) { w.pair("k", 9, W::raw<uint32_t>(12) + W::raw(~uint64_t{0})); }), "",
       "the array k of 18446744073709551615 values", "a whole file"},
      {"array_of_2_to_60_texts",
       changed([&](W& w) { w.pair("k", 9, W::raw<uint32_t>(8) + W::raw(huge)); }), "",
       "the array k of 1152921504606846976 values", "a whole file"},
      {"array_of_unknown_type",
       changed([&](W& w) { w.pair("k", 9, W::raw<uint32_t>(99) + W::raw<uint64_t>(1)); }), "",
       "the element type 99 of k", "a type of 0 to 12"},
      {"arrays_nested_deeply", changed([&](W& w) {
         std::string body;
         for (int i = 0; i < 1000; ++i) body += W::raw<uint32_t>(9) + W::raw<uint64_t>(1);
         w.pair("k", 9, body);
       }),
       "", "the element type 9 of k", "a type of 0 to 12"},
      {"key_twice", changed([](W& w) { w.add("n", 3u); }), "n", "the key twice", "once"},
      {"odd_alignment", changed([](W& w) { w.add("general.alignment", 48u); }), "general.alignment",
       "48", "a power of two"},
      {"no_dimensions", changed([](W& w) { w.tensor("x", kF32, {}, ""); }), "", "0 dimensions of x",
       "1 to 4"},
      {"five_dimensions", changed([](W& w) {
         w.tensor("x", kF32, {1, 1, 1, 1, 1}, "1234");
       }),
       "", "5 dimensions of x", "1 to 4"},
      {"product_overflows", changed([&](W& w) {
         w.tensor("x", kF32, {uint64_t{1} << 33, uint64_t{1} << 33}, "");
       }),
       "x", "the dimensions 8589934592 x 8589934592", "at most 2^60"},
      {"dimension_of_2_to_63", changed([&](W& w) { w.tensor("x", kF32, {uint64_t{1} << 63}, ""); }),
       "x", "the dimensions", "at most 2^60"},
      {"absurd_beside_a_zero", changed([&](W& w) {
         w.tensor("x", kF32, {uint64_t{1} << 40, uint64_t{1} << 40, 0}, "");
       }),
       "x", "the dimensions 0 x 1099511627776 x 1099511627776", "at most 2^60"},
      {"unknown_tensor_type", changed([](W& w) { w.tensor("x", 77, {4}, ""); }), "x",
       "the unknown type 77", "F32, F16"},
      {"columns_no_multiple_of_32", changed([](W& w) {
         w.tensor("x", kMxfp4, {2, 48}, "");
       }),
       "x", "48 columns of MXFP4", "a multiple of 32"},
      {"unaligned_offset", changed([](W& w) { w.tensor_at("x", kF32, {1}, 17, "1234"); }), "x",
       "the offset 17", "a multiple of 32"},
      {"offset_beyond_the_file", changed([&](W& w) { w.tensor_at("x", kF32, {1}, huge, "1234"); }),
       "x", "4 bytes at offset 1152921504606846976", "an end of at most"},
      {"offset_overflows",
       changed([&](W& w) { w.tensor_at("x", kF32, {16}, ~uint64_t{31}, "1234"); }), "x",
       "64 bytes at offset 18446744073709551584", "an end of at most"},
      {"overlap", changed([](W& w) { w.tensor_at("x", kF32, {1}, 0, "1234"); }), "t.f32",
       "overlapping those of x", "a start at"},
      {"hole", changed([](W& w) { w.tensor_at("x", kF32, {1}, 512, std::string(516 - 288, '1')); }),
       "x", "bytes before it", "a start at"},
      {"name_twice", changed([](W& w) { w.tensor("t.f32", kF32, {1}, "1234"); }), "t.f32",
       "the name twice", "once"},
      {"truncated", whole.substr(0, whole.size() - 60), "t.mx", "102 bytes at offset 192",
       "an end of at most"},
  };
}

class GgufDamage : public testing::TestWithParam<Damage> {};

TEST_P(GgufDamage, IsNamed) {
  const GgufFile file = read(GetParam().bytes);
  ASSERT_FALSE(file.contents.faults.empty());
  const Fault& fault = file.contents.faults.all()[0];
  EXPECT_EQ(fault.file, "x.gguf");
  EXPECT_EQ(fault.tensor, GetParam().tensor) << fault.message();
  EXPECT_NE(fault.found.find(GetParam().found), std::string::npos) << fault.message();
  EXPECT_NE(fault.expected.find(GetParam().expected), std::string::npos) << fault.message();
}
INSTANTIATE_TEST_SUITE_P(All, GgufDamage, testing::ValuesIn(damages()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Gguf, NoTensorIsReadableWhenTheHeaderBreaksBehindIt) {
  const std::string bytes = changed([](GgufWriter& w) { w.tensor("x", kF32, {}, ""); });
  const GgufFile file = read(bytes);
  EXPECT_FALSE(file.is_header_whole);
  ASSERT_EQ(file.contents.tensors.size(), 3u);
  for (const FileTensor& tensor : file.contents.tensors) EXPECT_FALSE(tensor.is_readable);
}

TEST(Gguf, AnyCutOfASoundFileIsAFault) {
  const std::string bytes = sound().bytes();
  // Up to 31 bytes at the end are padding, which may be absent.
  for (size_t n = 0; n + 32 < bytes.size(); ++n)
    EXPECT_FALSE(read(bytes.substr(0, n)).contents.faults.empty()) << n;
}

}  // namespace
}  // namespace moxie
