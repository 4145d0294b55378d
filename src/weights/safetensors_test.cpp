// The safetensors reader: sound files, and every kind of damage, each named with file, tensor,
// found and expected.
#include "weights/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "weights/safetensors_write.h"
#include "weights/testing/safetensors_bytes.h"

namespace moxie {
namespace {

std::string file_of(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + std::string(data_bytes, '\x11');
}

TensorFile read(const std::string& bytes) {
  return read_safetensors(
      MappedFile::borrow("x.safetensors", std::as_bytes(std::span(bytes.data(), bytes.size()))));
}

std::string all_messages(const TensorFile& file) {
  std::string out;
  for (const Fault& fault : file.faults.all()) out += fault.message() + "\n";
  return out;
}

TEST(Safetensors, FindsTensorsWithTheirBytes) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const uint8_t codes[3] = {7, 8, 9};
  const TensorBytes tensors[] = {
      {"a.weight", "F32", {2, 3}, std::as_bytes(std::span(values))},
      {"b \"quoted\"", "U8", {3}, std::as_bytes(std::span(codes))},
  };
  const std::string bytes = safetensors_bytes(tensors);
  const TensorFile file = read(bytes);
  ASSERT_EQ(all_messages(file), "");
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "a.weight");
  EXPECT_EQ(file.tensors[0].shape.to_string(), "[2, 3]");
  EXPECT_EQ(file.tensors[0].dtype, DType::kF32);
  EXPECT_TRUE(file.tensors[0].is_readable);
  EXPECT_EQ(std::memcmp(bytes.data() + file.tensors[0].offset, values, sizeof values), 0);
  EXPECT_EQ(file.tensors[1].name, "b \"quoted\"");
  EXPECT_EQ(std::memcmp(bytes.data() + file.tensors[1].offset, codes, 3), 0);
}

TEST(Safetensors, ReadsMetadataEmptyTensorsAndScalars) {
  const TensorFile file = read(file_of(
      R"({"__metadata__":{"format":"pt"},"s":{"dtype":"BF16","shape":[],"data_offsets":[0,2]},)"
      R"("e":{"dtype":"F32","shape":[0,5],"data_offsets":[2,2]}} )",
      2));
  EXPECT_EQ(all_messages(file), "");
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].bytes, 2u);
  EXPECT_EQ(file.tensors[1].bytes, 0u);
}

TEST(Safetensors, WritesWhatItReads) {
  const std::string path = testing::TempDir() + "/written.safetensors";
  const float values[4] = {0.5f, -1, 2, 8};
  const std::vector<TensorToWrite> tensors = {{.name = "logits.0",
                                               .dtype = "F32",
                                               .shape = {2, 2},
                                               .data = reinterpret_cast<const std::byte*>(values)}};
  ASSERT_TRUE(write_safetensors(path, tensors));
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().message();
  const FileTensor* tensor = file->find("logits.0");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(std::memcmp(file->data(*tensor), values, sizeof values), 0);
  EXPECT_EQ(file->find("logits.1"), nullptr);
  EXPECT_FALSE(write_safetensors("/no/such/folder/x.safetensors", tensors));
}

TEST(Safetensors, RefusesAMissingFileAFolderAndAnEmptyOne) {
  EXPECT_FALSE(SafetensorsFile::open("/no/such/file"));
  EXPECT_FALSE(SafetensorsFile::open(testing::TempDir()));
  const std::string path = testing::TempDir() + "/empty.safetensors";
  std::ofstream(path).close();
  const Result<SafetensorsFile> file = SafetensorsFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_NE(file.error().message().find("found a file of 0 bytes"), std::string::npos);
}

struct Damage {
  const char* name;
  std::string bytes;
  std::string tensor, found, expected;  // parts of the first fault
};

std::string with_length(uint64_t length) {
  std::string out = file_of("{}", 0);
  std::memcpy(out.data(), &length, 8);
  return out;
}

const char* const kOne = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";

std::vector<Damage> damages() {
  const auto one = [](const std::string& entry) { return "{\"a\":" + entry + "}"; };
  return {
      {"no_header_length", "1234567", "", "a file of 7 bytes", "8 bytes"},
      {"header_length_of_2_to_60", with_length(uint64_t{1} << 60), "",
       "a header length of 1152921504606846976", "2 to 2"},
      {"header_length_of_all_ones", with_length(~uint64_t{0}), "", "a header length of 1844",
       "2 to"},
      {"header_length_beyond_the_file", with_length(3), "", "a header length of 3", "2 to 2"},
      {"header_length_of_zero", with_length(0), "", "a header length of 0", "2 to"},
      {"header_is_no_json", file_of("{\"a\":", 0), "", "not JSON at byte 1", "a JSON object"},
      {"header_is_a_list", file_of("[1,2]", 0), "", "a list", "a JSON object"},
      {"header_is_a_number", file_of("17", 0), "", "the number 17", "a JSON object"},
      {"header_nests_deeply", file_of(std::string(100000, '['), 0), "", "a list", "a JSON object"},
      {"entry_nests_deeply", file_of("{\"a\":{\"shape\":[" + std::string(100000, '['), 0), "a",
       "a list", ""},
      {"entry_is_a_number", file_of("{\"a\":5}", 0), "a", "the number 5", "an object"},
      {"truncated", file_of(kOne, 7), "a", "data_offsets 0..8", "an end of at most 7"},
      {"bytes_after_the_last", file_of(kOne, 9), "", "1 bytes at the end", "an end at 8"},
      {"no_dtype", file_of(one(R"({"shape":[2],"data_offsets":[0,8]})"), 8), "a", "no dtype",
       "one"},
      {"no_shape", file_of(one(R"({"dtype":"F32","data_offsets":[0,8]})"), 8), "a", "no shape",
       "one"},
      {"no_offsets", file_of(one(R"({"dtype":"F32","shape":[2]})"), 8), "a", "no data_offsets",
       "two"},
      {"unknown_dtype", file_of(one(R"({"dtype":"F31","shape":[2],"data_offsets":[0,8]})"), 8), "a",
       "the dtype \"F31\"", "a known dtype"},
      {"dtype_is_a_number", file_of(one(R"({"dtype":3,"shape":[2],"data_offsets":[0,8]})"), 8), "a",
       "the number 3 in dtype", "a type's name"},
      {"shape_is_text", file_of(one(R"({"dtype":"F32","shape":"2","data_offsets":[0,8]})"), 8), "a",
       "the text \"2\" in shape", "whole numbers"},
      {"negative_dimension",
       file_of(one(R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})"), 8), "a",
       "the number -2", "whole numbers"},
      {"fractional_dimension",
       file_of(one(R"({"dtype":"F32","shape":[2.5],"data_offsets":[0,8]})"), 8), "a",
       "the number 2.5", "whole numbers"},
      {"one_offset", file_of(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8]})"), 8), "a",
       "data_offsets [8]", "two, rising"},
      {"three_offsets", file_of(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,8]})"), 8),
       "a", "data_offsets [0, 8, 8]", "two, rising"},
      {"falling_offsets", file_of(one(R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})"), 8),
       "a", "data_offsets [8, 0]", "two, rising"},
      {"size_and_shape_differ",
       file_of(one(R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})"), 8), "a", "8 bytes",
       "12 bytes for F32 [3]"},
      {"six_dimensions",
       file_of(one(R"({"dtype":"U8","shape":[1,1,1,1,1,8],"data_offsets":[0,8]})"), 8), "a",
       "the shape [1, 1, 1, 1, 1, 8]", "at most 5"},
      {"product_overflows",
       file_of(one(R"({"dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,8]})"), 8),
       "a", "the shape [4294967296, 4294967297]", "2^60"},
      {"absurd_beside_a_zero",
       file_of(
           one(R"({"dtype":"U8","shape":[1099511627776,1099511627776,0],"data_offsets":[0,0]})"),
           0),
       "a", "the shape [1099511627776, 1099511627776, 0]", "2^60"},
      {"offset_of_2_to_63",
       file_of(one(R"({"dtype":"U8","shape":[8],"data_offsets":[9223372036854775800,)"
                   R"(9223372036854775808]})"),
               8),
       "a", "data_offsets 9223372036854775800..9223372036854775808", "an end of at most 8"},
      {"overlap",
       file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
               12),
       "b", "bytes 4..12 overlapping those of a", "a start at 8"},
      {"hole",
       file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})",
               20),
       "b", "4 bytes before it", "a start at 8"},
      {"name_twice",
       file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
               R"("a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
               16),
       "a", "the name twice", "once"},
      {"unknown_field",
       file_of(one(R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1})"), 8), "a",
       "the field \"x\"", "dtype, shape and data_offsets"},
  };
}

class SafetensorsDamage : public testing::TestWithParam<Damage> {};

TEST_P(SafetensorsDamage, IsNamed) {
  const TensorFile file = read(GetParam().bytes);
  ASSERT_FALSE(file.faults.empty());
  const Fault& fault = file.faults.all()[0];
  EXPECT_EQ(fault.file, "x.safetensors");
  EXPECT_EQ(fault.tensor, GetParam().tensor);
  EXPECT_NE(fault.found.find(GetParam().found), std::string::npos) << fault.message();
  EXPECT_NE(fault.expected.find(GetParam().expected), std::string::npos) << fault.message();
}
INSTANTIATE_TEST_SUITE_P(All, SafetensorsDamage, testing::ValuesIn(damages()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Safetensors, ReportsAllFaultsAtOnceAndStillListsTheTensors) {
  const TensorFile file = read(file_of(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]},)"
                                       R"("b":{"dtype":"F32","shape":[9],"data_offsets":[8,16]},)"
                                       R"("c":{"dtype":"U8","shape":[4],"data_offsets":[16,20]},)"
                                       R"("d":{"dtype":"U8","shape":[4],"data_offsets":[90,94]}})",
                                       20));
  const std::string messages = all_messages(file);
  EXPECT_NE(messages.find("x.safetensors: a: found the dtype"), std::string::npos) << messages;
  EXPECT_NE(messages.find("x.safetensors: b: found 8 bytes"), std::string::npos) << messages;
  EXPECT_NE(messages.find("x.safetensors: d: found data_offsets 90..94"), std::string::npos);
  EXPECT_NE(messages.find("x.safetensors: found 20 bytes of data after the header: the file is cut "
                          "off, or its header is wrong, expected 94 bytes"),
            std::string::npos)
      << messages;
  EXPECT_EQ(messages.find("belong to no tensor"), std::string::npos) << messages;
  ASSERT_EQ(file.tensors.size(), 4u);
  EXPECT_FALSE(file.tensors[0].is_readable);
  EXPECT_FALSE(file.tensors[1].is_readable);
  EXPECT_TRUE(file.tensors[2].is_readable);
  EXPECT_FALSE(file.tensors[3].is_readable);
}

TEST(Safetensors, BoundsTheNumberOfFaultsKept) {
  std::string header = "{";
  for (int i = 0; i < 3000; ++i) header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  const TensorFile file = read(file_of(header + "}", 0));
  EXPECT_EQ(file.faults.all().size(), FaultList::kMaxFaults + 1);
  EXPECT_NE(file.faults.all().back().message().find("further faults"), std::string::npos);
}

TEST(Safetensors, AnyCutOfASoundFileIsAFault) {
  const float values[6] = {1, 2, 3, 4, 5, 6};
  const TensorBytes tensors[] = {{"a", "F32", {6}, std::as_bytes(std::span(values))}};
  const std::string bytes = safetensors_bytes(tensors);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_FALSE(read(bytes.substr(0, n)).faults.empty()) << n;
}

TEST(MappedFile, SeesThatAFileWasShortened) {
  const std::string path = testing::TempDir() + "/shortened";
  std::ofstream(path) << std::string(10000, 'x');
  const Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
  ASSERT_TRUE(file);
  EXPECT_TRUE((*file)->check_unchanged());
  std::ofstream(path) << "short";
  const Status status = (*file)->check_unchanged();
  ASSERT_FALSE(status);
  EXPECT_NE(status.error().message().find("from 10000 to 5 bytes"), std::string::npos);
}

TEST(MappedFile, ReleasedPagesCanBeReadAgain) {
  const std::string path = testing::TempDir() + "/released";
  std::ofstream(path) << std::string(100000, 'x');
  const Result<std::shared_ptr<const MappedFile>> file = MappedFile::open(path);
  ASSERT_TRUE(file);
  EXPECT_EQ((*file)->bytes()[50000], std::byte{'x'});
  (*file)->will_need(0, 100000);
  (*file)->release(10, 99000);
  (*file)->release(99999, 1 << 20);
  EXPECT_EQ((*file)->bytes()[50000], std::byte{'x'});
  EXPECT_EQ((*file)->bytes()[99999], std::byte{'x'});
}

}  // namespace
}  // namespace moxie
