// Vectors that torch.save wrote (tests/data/torch), and files that are damaged, or hold something
// else.
#include "weights/torch_vector.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/testing/paths.h"

namespace moxie {
namespace {

using namespace std::string_literals;

std::string bytes_of(const std::string& name) {
  std::ifstream file(test_data() + "/torch/" + name + ".pt", std::ios::binary);
  CHECK(file.good(), name);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Result<TorchVector> read(const std::string& bytes, int64_t max_values = 8) {
  return read_torch_vector(
      *MappedFile::borrow("m.pt", std::as_bytes(std::span(bytes.data(), bytes.size()))),
      max_values);
}

std::string refusal(const std::string& bytes, int64_t max_values = 8) {
  const auto vector = read(bytes, max_values);
  return vector ? "" : vector.error().message();
}

// The pickle with the first `from` replaced by a text of the same length.
std::string changed(std::string bytes, const std::string& from, const std::string& to) {
  const size_t at = bytes.find(from);
  CHECK(at != bytes.npos && from.size() == to.size(), from);
  return bytes.replace(at, from.size(), to);
}

TEST(TorchVector, OfEachTypeAndPlaceInItsStorageIsRead) {
  for (const char* name :
       {"bf16", "f16_row", "f32_column_of_two", "bf16_row_of_three", "dict", "dict_of_one"}) {
    const auto vector = read(bytes_of(name));
    ASSERT_TRUE(vector.has_value()) << name << ": " << vector.error().message();
    ASSERT_EQ(vector->values.size(), 8u) << name;
    for (size_t i = 0; i < 8; ++i)
      EXPECT_EQ(vector->values[i], (static_cast<float>(i) - 3) / 4) << name << " " << i;
    EXPECT_EQ(vector->numbers.contains("mask_token_id"), name == std::string("dict"));
    EXPECT_NE(refusal(bytes_of(name), 7).find("holds 8 values, more than 7"), std::string::npos);
  }
  EXPECT_EQ(read(bytes_of("dict"))->numbers.at("mask_token_id"), 507);
}

TEST(TorchVector, AnythingElseIsRefusedWithTheReason) {
  const std::string good = bytes_of("bf16");
  const std::pair<std::string, const char*> cases[] = {
      {bytes_of("f64"), "is a torch.DoubleStorage, not of BF16, F16 or F32"},
      {bytes_of("matrix"), "holds no vector"},
      {bytes_of("parameter"), "names torch._utils._rebuild_parameter"},
      {bytes_of("text"), "pickle opcode 0x58"},
      {bytes_of("numbers"), "holds 0 tensors, not one"},
      {bytes_of("two"), "pickle opcode 0x68"},  // the name of the first's class, recalled
      {bytes_of("legacy"), "is no zip archive"},
      {changed(good, "torch._utils\n_rebuild_tensor_v2", "posix.system\n_rebuild_tensor_v2"),
       "names posix.system._rebuild_tensor_v2"},
      {changed(good, "collections\nOrderedDict", "collections\nOrderedSets"), "names collections"},
      {changed(good, "q\x05Q", "q\x05R"), "pickle opcode 0x52"},
      {changed(good, "storage", "starage"), "another form"},
      {changed(good, "K\x08t", "K\x09t"), "lacks the values"},
      {changed(good, "QK\x00K\x08\x85"s, "QK\x01K\x08\x85"s), "lacks the values"},
      {changed(good, "little", "bigger"), "is not little-endian"},
      {changed(good, "PK\x05\x06", "PK\x05\x07"), "without its end"},
      {changed(good, "PK\x01\x02", "PK\x01\x03"), "damaged directory"},
      {changed(good, "PK\x03\x04", "PK\x03\x05"), "is no zip archive"},
  };
  for (const auto& [bytes, why] : cases) {
    const std::string message = refusal(bytes);
    EXPECT_NE(message.find(why), message.npos) << why << ": " << message;
    EXPECT_NE(message.find("torch.save("), message.npos) << message;
  }
  // The method of the first entry in the directory: deflate.
  std::string packed = good;
  packed[packed.find("PK\x01\x02") + 10] = '\x08';
  EXPECT_NE(refusal(packed).find("compressed"), std::string::npos) << refusal(packed);
}

TEST(TorchVector, CutOffOrWithOneByteChangedIsReadOrRefused) {
  for (const char* name : {"bf16", "dict", "f32_column_of_two"}) {
    const std::string good = bytes_of(name);
    for (size_t length = 0; length < good.size(); ++length)
      EXPECT_FALSE(refusal(good.substr(0, length)).empty()) << length;
    for (size_t at = 0; at < good.size(); ++at) {
      for (const int change : {1, 0x80, 0xFF}) {
        std::string bytes = good;
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        const auto vector = read(bytes);
        EXPECT_TRUE(!vector || vector->values.size() <= 8);
      }
    }
  }
}

}  // namespace
}  // namespace moxie
