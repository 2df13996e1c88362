// Shared by the tests of the cache store on disk.
#pragma once

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"

namespace refurbish_tf {

inline constexpr GenerationRange kAny;

inline GenerationRange AtLeast(Generation generation) { return {generation}; }

// The payload of a sample, which differs for each index, generation and size.
inline std::string Content(uint64_t index, Generation generation, size_t size) {
  std::string content(size, '\0');
  char* const data = content.data();
  uint64_t state = index * 0x9e3779b97f4a7c15 + generation * 31 + size + 1;
  // Eight bytes at a time, because the tests spend most of their time here.
  for (size_t i = 0; i < size; i += sizeof(state)) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const uint64_t bytes = state ^ state >> 32;
    std::memcpy(data + i, &bytes, std::min(sizeof(bytes), size - i));
  }
  return content;
}

inline std::string ReadFile(const std::string& path) {
  std::ostringstream text;  // Reading an index byte by byte would take long.
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void WriteFile(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

// All files in a directory, by name.
inline std::map<std::string, std::string> ReadFiles(const std::string& directory) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    files[entry.path().filename()] = ReadFile(entry.path());
  }
  return files;
}

// The number of random rounds: REFURBISH_TF_ROUNDS if that is set, otherwise `handful`.
inline int Rounds(int handful) {
  const char* const asked = std::getenv("REFURBISH_TF_ROUNDS");
  return asked != nullptr ? std::atoi(asked) : handful;
}

// A directory of a file system in memory, if there is one.
inline std::filesystem::path InMemory() {
  return access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
}

// Hides stderr during its lifetime.
class Quiet {
 public:
  Quiet() : stderr_(dup(STDERR_FILENO)) {
    const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO);
    close(null);
  }
  ~Quiet() {
    dup2(stderr_, STDERR_FILENO);
    close(stderr_);
  }

 private:
  const int stderr_;
};

// Options with this value for one of them, and the defaults for the others.
template <class Option, class Value>
DiskStoreOptions With(Option DiskStoreOptions::* option, Value&& value) {
  DiskStoreOptions options;
  options.*option = std::forward<Value>(value);
  return options;
}

// Runs a function, if one is set, before reads begin.
class HookedReads : public ReadQueue {
 public:
  explicit HookedReads(const std::function<void()>* before) : ReadQueue(8), before_(before) {}
  void Start(Read* const* reads, size_t count) override {
    const std::function<void()> before = *before_;
    if (before != nullptr) before();
    ReadQueue::Start(reads, count);
  }

 private:
  const std::function<void()>* const before_;
};

class StoreDirectoryTest : public testing::Test {
 protected:
  StoreDirectoryTest() : StoreDirectoryTest(std::filesystem::temp_directory_path()) {}
  explicit StoreDirectoryTest(const std::filesystem::path& parent) {
    std::signal(SIGXFSZ, SIG_IGN);  // Python ignores it as well.
    std::string name = (parent / "store-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~StoreDirectoryTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<DiskStore> Open(DiskStoreOptions options = {}) {
    auto store = DiskStore::Open(directory_, std::move(options));
    EXPECT_TRUE(store.ok()) << store.status().ToString();
    return store.ok() ? *std::move(store) : nullptr;
  }

  static PutResult Put(DiskStore& store, uint64_t index, Generation generation, const std::string& content) {
    const size_t half = content.size() / 2;
    char* data = const_cast<char*>(content.data());
    const iovec parts[] = {{data, half}, {data + half, content.size() - half}};
    return store.Put(index, generation, parts);
  }

  static std::string Get(DiskStore& store, uint64_t index, GenerationRange wanted = kAny) {
    RecordBuffer record;
    if (!store.Get(index, wanted, &record)) return "absent";
    return {record.payload(), record.payload_size()};
  }

  // Runs `body` in a new process, which has a single thread. Returns its id.
  template <class Body>
  static pid_t Fork(const Body& body) {
    std::fflush(nullptr);  // Otherwise the child may write buffered text again.
    const pid_t child = fork();
    if (child == 0) _exit(body());
    return child;
  }

  // Waits for the end of a child. Returns its exit status, or minus the signal that killed it.
  static int Join(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }

  std::string directory_;
};

}  // namespace refurbish_tf
