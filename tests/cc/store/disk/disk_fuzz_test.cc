// Rounds in which the files of a store are damaged and replaced, or its disk fills up (disk_fuzz_testing.h). Each user
// has its own store object; threads that share one are in disk_store_races_test.cc, for the thread sanitizer.
// tests/fuzz/fuzz_damage.py plants links and pipes.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/store_env.h"
#include "tests/cc/store/disk/disk_fuzz_testing.h"

namespace refurbish_tf {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Names(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;  // Files come and go.
  for (fs::directory_iterator entry(directory, error), end; entry != end; entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

constexpr off_t kHuge = off_t{1} << 30;

// Damages files as tools and people do, for example by restoring an older copy.
class Injury {
 public:
  explicit Injury(std::string directory) : directory_(std::move(directory)) {}

  void operator()(Random& random) {
    const std::vector<std::string> names = Names(directory_);
    if (names.empty()) return;
    const std::string& name = names[random() % names.size()];
    const std::string path = directory_ + "/" + name;
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;  // Deleted in the meantime.
    struct stat status;
    fstat(fd, &status);
    const off_t size = std::max<off_t>(status.st_size, 1);
    // Most data of the index is at its beginning.
    const off_t offset = random() % (random() % 2 == 0 ? size : std::min<off_t>(size, 500));
    std::string bytes(random() % 2'000, '\0');
    switch (random() % 11) {
      case 0:
        EXPECT_EQ(ftruncate(fd, random() % 2 == 0 ? 0 : offset), 0);
        break;
      case 1: {
        // Some files become huge, but not the index and the claims, because these are scanned to their ends.
        const bool may_be_huge = Rounds(0) > 0 && name != "index" && name != "claims";
        EXPECT_EQ(ftruncate(fd, size + random() % (uint64_t{1} << (may_be_huge ? 40 : 21))), 0);
        break;
      }
      case 2:
        for (char& byte : bytes) byte = random();
        [[fallthrough]];
      case 3:
        Write(fd, offset, bytes);
        break;
      case 4:
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, size);
        break;
      case 5:
        unlink(path.c_str());
        break;
      case 6: {  // Exchanges two files, unless a huge one might become the index.
        const std::string other = directory_ + "/" + names[random() % names.size()];
        std::error_code error;
        if (size < kHuge && static_cast<off_t>(fs::file_size(other, error)) < kHuge) {
          renameat2(AT_FDCWD, path.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
        }
        break;
      }
      case 7:
        copies_[name] = ReadStartOf(path);
        break;
      case 8:  // As cp does.
        EXPECT_EQ(ftruncate(fd, 0), 0);
        Write(fd, 0, Copy(name));
        break;
      case 9:  // As rsync --inplace does.
        Write(fd, 0, Copy(name));
        EXPECT_EQ(ftruncate(fd, Copy(name).size()), 0);
        break;
      case 10: {  // As rsync does.
        const std::string other = directory_ + "/../copy" + std::to_string(getpid()) + std::to_string(random());
        std::ofstream(other, std::ios::binary) << Copy(name);
        fs::permissions(other, fs::perms(0600));
        EXPECT_EQ(rename(other.c_str(), path.c_str()), 0);
        break;
      }
    }
    close(fd);
  }

 private:
  // An earlier copy of the file, or its current contents.
  const std::string& Copy(const std::string& name) {
    const auto found = copies_.find(name);
    if (found != copies_.end()) return found->second;
    return copies_[name] = ReadStartOf(directory_ + "/" + name);
  }

  static void Write(int fd, off_t offset, const std::string& bytes) {
    const ssize_t size = bytes.size();
    EXPECT_EQ(pwrite(fd, bytes.data(), size, offset), size);
  }

  const std::string directory_;
  std::map<std::string, std::string> copies_;
};

TEST_F(DiskFuzzTest, SurvivesDamageToOpenFiles) {
  RunRounds([&](Random& random) {
    Use(random, &StoreEnv::Default(), Injury(store_));
    ExpectWorksAnew(store_);
  });
}

// Mounts a small file system, if permitted; it ends with the process. Also punches holes into the mapped files, because
// touching a hole on a full disk kills a process.
TEST_F(DiskFuzzTest, RecoversFromAFullRealDisk) {
  const std::string disk = directory_ + "/round";
  RunRounds([&](Random& random) {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=6m,mode=700") != 0) {
      GTEST_SKIP() << "may not mount a file system: " << std::strerror(errno);
    }
    const std::string filler = disk + "/filler";
    const Harm harm = [&](Random& random) {
      const uint64_t free = fs::space(disk).available;
      if (random() % 2 == 0) {
        truncate(filler.c_str(), 0);
      } else if (random() % 3 == 0) {
        const std::string name = random() % 2 == 0 ? "/index" : "/claims";
        const int fd = open((store_ + name).c_str(), O_RDWR | O_CLOEXEC);
        if (fd < 0) return;
        fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 1 << 20);
        close(fd);
      } else {
        const int fd = open(filler.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        (void)posix_fallocate(fd, 0, free - std::min<uint64_t>(free, random() % 100'000));
        close(fd);
      }
    };
    fs::create_directory(store_);
    fs::permissions(store_, fs::perms(0700));
    Use(random, &StoreEnv::Default(), harm);
    fs::remove(filler);
    ExpectWorksAnew(store_);
  });
}

}  // namespace
}  // namespace refurbish_tf
