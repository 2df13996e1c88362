#include "refurbish_tf/cc/store/disk/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/directory.h"
#include "tests/cc/store/disk/disk_store_testing.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

class MappedFileTest : public StoreDirectoryTest {
 protected:
  static constexpr uint64_t kChunk = 64 << 10;

  std::unique_ptr<MappedFile> OpenFile() {
    if (opened_ == nullptr) {
      opened_ = *Directory::Open(directory_, &StoreEnv::Default());
    }
    auto file = MappedFile::Open(opened_.get(), "file", kChunk, 8);
    EXPECT_TRUE(file.ok()) << file.status().ToString();
    return *std::move(file);
  }
  std::string path() const { return directory_ + "/file"; }

  std::unique_ptr<Directory> opened_;
};

TEST_F(MappedFileTest, ChangesAreVisibleInOtherMappings) {
  auto one = OpenFile();
  auto two = OpenFile();
  EXPECT_EQ(one->Find(1), nullptr);
  ASSERT_TRUE(one->Reserve(1).ok());
  one->Find(1)[7] = 'x';
  EXPECT_EQ(two->Find(1)[7], 'x');
  EXPECT_FALSE(one->WasCut());
}

TEST_F(MappedFileTest, TruncatedPartsAreZeroUntilTheyAreMended) {
  for (const size_t left : {size_t{0}, size_t{1}, size_t{4096}, kChunk + 5}) {
    auto one = OpenFile();
    auto two = OpenFile();
    ASSERT_TRUE(one->Reserve(1).ok());
    for (MappedFile* file : {one.get(), two.get()}) {
      for (uint64_t chunk : {0, 1}) file->Find(chunk)[kChunk - 1] = 'x';
    }
    std::filesystem::resize_file(path(), left);
    EXPECT_EQ(one->Find(1)[kChunk - 1], 0);
    one->Find(1)[kChunk - 2] = 'y';
    EXPECT_EQ(one->Find(1)[kChunk - 2], 'y');
    EXPECT_TRUE(one->WasCut());
    ASSERT_TRUE(one->Mend().ok());
    EXPECT_FALSE(one->WasCut());
    EXPECT_EQ(std::filesystem::file_size(path()), 2 * kChunk);
    EXPECT_EQ(one->Find(0)[kChunk - 1], left > kChunk ? 'x' : 0);
    // Both see each other's changes again.
    one->Find(1)[kChunk - 3] = 'z';
    EXPECT_EQ(two->Find(1)[kChunk - 3], 'z');
    EXPECT_FALSE(two->WasCut());
    std::filesystem::remove(path());
  }
}

// Runs a function once, when the file is next extended.
class GrowingEnv : public StoreEnv {
 public:
  absl::Status Allocate(int fd, uint64_t offset, uint64_t size) override {
    if (doing != nullptr) std::exchange(doing, nullptr)();
    return StoreEnv::Allocate(fd, offset, size);
  }
  std::function<void()> doing;
};

TEST_F(MappedFileTest, TruncationDuringMendingIsMendedNextTime) {
  GrowingEnv env;
  opened_ = *Directory::Open(directory_, &env);
  auto one = OpenFile();
  auto two = OpenFile();
  std::filesystem::resize_file(path(), 0);
  one->Find(0)[0] = 'x';
  env.doing = [&] {
    ASSERT_TRUE(one->Reserve(1).ok());
    std::filesystem::resize_file(path(), kChunk);
    one->Find(1)[0] = 'x';
  };
  ASSERT_TRUE(one->Mend().ok());
  EXPECT_TRUE(one->WasCut());
  ASSERT_TRUE(one->Mend().ok());
  EXPECT_FALSE(one->WasCut());
  one->Find(1)[0] = 'y';
  EXPECT_EQ(two->Find(1)[0], 'y');
}

// `AppendZeros` is for file systems that cannot reserve space.
TEST_F(MappedFileTest, AppendsZerosWithoutOverwritingData) {
  WriteFile(path(), "abc");
  const int fd = open(path().c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  EXPECT_TRUE(AppendZeros(fd, 100'000).ok());
  EXPECT_EQ(ReadFile(path()), "abc" + std::string(100'000 - 3, '\0'));
  EXPECT_TRUE(AppendZeros(fd, 50'000).ok());
  EXPECT_EQ(std::filesystem::file_size(path()), 100'000);
  close(fd);
}

TEST_F(MappedFileTest, CanBeUsedWhileItIsTruncated) {
  auto file = OpenFile();
  std::atomic<bool> stop{false};
  Threads threads(3, [&](int i) {
    auto* const words = reinterpret_cast<std::atomic<uint64_t>*>(file->Find(0));
    for (uint64_t k = i; !stop; ++k) ++words[k % (kChunk / 8)];
  });
  for (int round = 0; round < 50; ++round) {
    std::filesystem::resize_file(path(), round % 3 * 4096);
    if (file->WasCut()) {
      EXPECT_TRUE(file->Mend().ok());
    }
  }
  stop = true;
  threads.Join();
  EXPECT_TRUE(file->Mend().ok());
  EXPECT_EQ(std::filesystem::file_size(path()), kChunk);
}

TEST_F(MappedFileTest, OtherBusErrorsReachThePreviousHandler) {
  const auto touch_beyond_the_end = [&] {
    const int fd = open((directory_ + "/other").c_str(), O_RDWR | O_CREAT, 0600);
    auto* const memory = static_cast<volatile char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    return static_cast<int>(memory[0]);
  };
  EXPECT_EQ(Join(Fork([&] {
              std::signal(SIGBUS, SIG_DFL);
              OpenFile();
              return touch_beyond_the_end();
            })),
            -SIGBUS);
  EXPECT_EQ(Join(Fork([&] {
              std::signal(SIGBUS, [](int) { _exit(7); });
              OpenFile();
              return touch_beyond_the_end();
            })),
            7);
}

}  // namespace
}  // namespace refurbish_tf
