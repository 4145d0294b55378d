// The CUDA device on a machine that has one: memory, copies, streams from any thread, and errors.
#include <thread>

#include "core/cuda.h"
#include "kernels/embed/embed.h"
#include "kernels/testing/cuda_test.h"

namespace moxie {
namespace {

class DeviceCudaTest : public CudaTest {};

TEST_F(DeviceCudaTest, PropertiesArePlausible) {
  const DeviceProperties& found = device().properties();
  EXPECT_EQ(device().kind(), DeviceKind::kCuda);
  EXPECT_FALSE(found.name.empty());
  EXPECT_GE(found.compute_capability, 90);
  EXPECT_GT(found.num_units, 0);
  EXPECT_GT(found.shared_bytes, 48u * 1024);
  EXPECT_GT(found.l2_bytes, 0u);
  EXPECT_GT(found.available_bytes, 0u);
  EXPECT_LE(found.available_bytes, found.memory_bytes);
  std::string why;
  EXPECT_GE(num_cuda_devices(&why), 1) << why;
}

TEST_F(DeviceCudaTest, BytesComeBackAsTheyWent) {
  for (const size_t bytes : {1u, 255u, 4096u, 1000003u}) {
    std::vector<uint8_t> sent(bytes), back(bytes, 0);
    for (size_t i = 0; i < bytes; ++i) sent[i] = static_cast<uint8_t>(i * 7 + i / 256);
    Buffer buffer = take(device().allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
    done(device().copy_from_host(buffer.data(), sent.data(), bytes, stream()));
    done(device().copy_to_host(back.data(), buffer.data(), bytes, stream()));
    done(stream().synchronize());
    EXPECT_EQ(sent, back);
    done(device().fill_zero(buffer.data(), bytes, stream()));
    done(device().copy_to_host(back.data(), buffer.data(), bytes, stream()));
    done(stream().synchronize());
    EXPECT_EQ(back, std::vector<uint8_t>(bytes, 0));
  }
}

TEST_F(DeviceCudaTest, NothingIsCopiedOrFilledForZeroBytes) {
  const Buffer empty = take(device().allocate(0));
  EXPECT_EQ(empty.data(), nullptr);
  EXPECT_TRUE(device().copy_from_host(nullptr, nullptr, 0, stream()).has_value());
  EXPECT_TRUE(device().fill_zero(nullptr, 0, stream()).has_value());
}

TEST_F(DeviceCudaTest, TooLargeAnAllocationNamesTheSizeAndTheDeviceGoesOn) {
  const uint64_t bytes = uint64_t{1} << 50;
  const auto refused = device().allocate(bytes);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().what.find(std::to_string(bytes)), std::string::npos);
  EXPECT_FALSE(refused.error().hint.empty());
  EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);
  EXPECT_TRUE(device().allocate(4096).has_value());
}

TEST_F(DeviceCudaTest, AnyThreadMayUseAStream) {
  std::vector<uint8_t> back(4096, 1);
  Buffer buffer = take(device().allocate(back.size()));
  std::thread other([&] {
    done(device().fill_zero(buffer.data(), back.size(), stream()));
    done(device().copy_to_host(back.data(), buffer.data(), back.size(), stream()));
    done(stream().synchronize());
  });
  other.join();
  EXPECT_EQ(back, std::vector<uint8_t>(4096, 0));
}

TEST_F(DeviceCudaTest, ADeviceThatIsNotThereIsRefusedByNumber) {
  for (const int index : {-1, 4096}) {
    const auto refused = make_cuda_device(index);
    ASSERT_FALSE(refused.has_value());
    EXPECT_NE(refused.error().where.find(std::to_string(index)), std::string::npos);
  }
}

TEST_F(DeviceCudaTest, TheChooserTakesTheRowOfTheDevice) {
  const EmbedParams params{.num_tokens = 1, .table = {.rows = 8, .cols = 64}};
  const KernelChooser chooser(DeviceKind::kCuda, features(), {});
  const auto row = chooser.select(params);
  ASSERT_TRUE(row.has_value()) << row.error().message();
  EXPECT_EQ((*row)->device, DeviceKind::kCuda);

  KernelChoice reference;
  ASSERT_TRUE(reference.add("embed=reference").has_value());
  const KernelChooser forced(DeviceKind::kCuda, features(), reference);
  EXPECT_FALSE(forced.select(params).has_value()) << "the reference row is for the CPU";
}

}  // namespace
}  // namespace moxie
