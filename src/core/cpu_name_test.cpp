// /proc/cpuinfo of both architectures, cut to the lines that matter.
#include "core/cpu_name.h"

#include <gtest/gtest.h>

#include <sstream>

namespace moxie {
namespace {

std::string name_of(const std::string& text) {
  std::istringstream stream(text);
  return cpu_name_of(stream);
}

std::string core(const std::string& implementer, const std::string& part) {
  return "processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: " + implementer +
         "\nCPU variant\t: 0x0\nCPU part\t: " + part + "\n\n";
}

TEST(CpuName, IsTheModelNameWhereThereIsOne) {
  EXPECT_EQ(name_of("processor\t: 0\nmodel\t\t: 143\nmodel name\t: A CPU @ 2 GHz\n\n"
                    "processor\t: 1\nmodel name\t: Another\n"),
            "A CPU @ 2 GHz");
}

TEST(CpuName, CountsTheKindsOfCoresOfAnArm) {
  const std::string small = core("0x41", "0xd87"), big = core("0x41", "0xd85");
  EXPECT_EQ(name_of(small + small + big + small), "3 x Cortex-A725, 1 x Cortex-X925");
  EXPECT_EQ(name_of(core("0x41", "0xd4f")), "1 x Neoverse-V2");
}

TEST(CpuName, KeepsTheNumbersOfCoresThatItDoesNotKnow) {
  EXPECT_EQ(name_of(core("0x41", "0xfff")), "1 x part 0xfff of implementer 0x41");
  EXPECT_EQ(name_of(core("0x42", "0xd4f")), "1 x part 0xd4f of implementer 0x42");
}

TEST(CpuName, IsAWordWhereNothingIsSaid) { EXPECT_EQ(name_of("processor\t: 0\n"), "CPU"); }

}  // namespace
}  // namespace moxie
