#include "refurbish_tf/cc/base/memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace refurbish_tf {
namespace {

class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/refurbish_tf_memory_XXXXXX";
    root_ = mkdtemp(name);
    SetMemoryRoot(root_);
    Write("proc/meminfo", "MemTotal: 9000 kB\nNote: none\nMemAvailable: 4000 kB\n");
  }

  void TearDown() override {
    SetMemoryRoot("");
    std::filesystem::remove_all(root_);
  }

  void Write(const std::string& name, const std::string& text) {
    const std::filesystem::path path = root_ + "/" + name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }

  void Expect(int64_t limit, int64_t free) {
    const Memory memory = ReadMemory();
    EXPECT_EQ(memory.limit, limit);
    EXPECT_EQ(memory.free, free);
  }

  std::string root_;
};

TEST_F(MemoryTest, EqualsMachineMemoryWithoutCgroups) { Expect(9000 * 1024, 4000 * 1024); }

TEST_F(MemoryTest, TheReserveLeavesRoomInASmallContainer) {
  const auto reserve = [](int64_t mib) { return Memory{mib << 20, 0}.reserve() >> 20; };
  EXPECT_EQ(reserve(20 << 10), 2 << 10);
  EXPECT_EQ(reserve(10 << 10), 1 << 10);
  EXPECT_EQ(reserve(4 << 10), 1 << 10);
  EXPECT_EQ(reserve(2 << 10), 512);
}

// The memory stays allocated, so that the test can read it after its pages were returned.
TEST(ReturnPagesTest, ReturnsWholePagesAndNothingElse) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  std::vector<char> memory(20 * page, 'a');
  // From the middle of a page to the middle of another one.
  char* const begin = memory.data() + page - reinterpret_cast<uintptr_t>(memory.data()) % page + page / 2;
  ReturnPages(begin, 10 * page);
  EXPECT_EQ(std::count(begin, begin + 10 * page, 'a'), page);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), '\0'), 9 * page);
  ReturnPages(begin, page - 1);
  EXPECT_EQ(std::count(memory.begin(), memory.end(), '\0'), 9 * page);
}

TEST_F(MemoryTest, IsLimitedByAllEnclosingCgroups) {
  Write("proc/self/cgroup", "1:cpu:/other\n0::/outer/inner\n");
  Write("sys/fs/cgroup/outer/memory.max", "1000000\n");
  Write("sys/fs/cgroup/outer/memory.current", "700000\n");
  Expect(1'000'000, 300'000);
  // The system can reclaim pages of files.
  Write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 150000\nactive_file 50000\nfile 900000\n");
  Expect(1'000'000, 500'000);
  Write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  Expect(1'000'000, 500'000);
  // Other processes of the outer group use its memory, so less may be free than the inner limit allows.
  Write("sys/fs/cgroup/outer/inner/memory.max", "800000\n");
  Write("sys/fs/cgroup/outer/inner/memory.current", "200000\n");
  Expect(800'000, 500'000);
  Write("sys/fs/cgroup/outer/inner/memory.current", "900000\n");
  Expect(800'000, 0);
}

TEST_F(MemoryTest, IsLimitedByCgroupsV1) {
  Write("proc/self/cgroup", "4:memory:/from/outside\n0::/\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "5\n");
  Expect(9000 * 1024, 4000 * 1024);
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "700000\n");
  Write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n");
  Expect(1'000'000, 400'000);
}

}  // namespace
}  // namespace refurbish_tf
