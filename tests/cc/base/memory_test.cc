#include "refurbish_tf/cc/base/memory.h"

#include <filesystem>
#include <fstream>
#include <string>

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

TEST_F(MemoryTest, IsTheMachinesWithoutAGroup) {
  Expect(9000 * 1024, 4000 * 1024);
  EXPECT_EQ(ReadMemory().reserve(), 1 << 30);
  EXPECT_EQ((Memory{int64_t{20} << 30, 0}).reserve(), int64_t{2} << 30);
}

TEST_F(MemoryTest, IsWithinAllGroupsAround) {
  Write("proc/self/cgroup", "1:cpu:/other\n0::/outer/inner\n");
  Write("sys/fs/cgroup/outer/memory.max", "1000000\n");
  Write("sys/fs/cgroup/outer/memory.current", "700000\n");
  Expect(1'000'000, 300'000);
  // The system gives pages of files back.
  Write("sys/fs/cgroup/outer/memory.stat", "anon 5\ninactive_file 150000\nactive_file 50000\nfile 900000\n");
  Expect(1'000'000, 500'000);
  Write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  Expect(1'000'000, 500'000);
  // The other processes of a group around, which may have more, count.
  Write("sys/fs/cgroup/outer/inner/memory.max", "800000\n");
  Write("sys/fs/cgroup/outer/inner/memory.current", "200000\n");
  Expect(800'000, 500'000);
  Write("sys/fs/cgroup/outer/inner/memory.current", "900000\n");
  Expect(800'000, 0);
}

TEST_F(MemoryTest, IsWithinGroupsOfTheFirstVersion) {
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
