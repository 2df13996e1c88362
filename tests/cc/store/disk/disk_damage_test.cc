// Whatever happens to the files or the disk, a sample from the store is right or absent.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>

#include "gtest/gtest.h"
#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"
#include "refurbish_tf/cc/store/disk/location.h"
#include "refurbish_tf/cc/store/disk/read_queue.h"
#include "refurbish_tf/cc/store/disk/settings_file.h"
#include "tests/cc/store/disk/disk_store_testing.h"

namespace refurbish_tf {
namespace {

namespace fs = std::filesystem;

// A small store, damaged in one place at a time.
class DiskDamageTest : public StoreDirectoryTest {
 protected:
  // Only this much of the index is saved and restored; the rest is zeros.
  static constexpr size_t kIndexBytes = 4096;
  static constexpr Generation kGeneration = 5;
  static constexpr uint64_t kAbsent = 3;  // Never put.
  static constexpr uint64_t kLarge = 5;
  static constexpr uint64_t kSamples = 8;
  // The distances between tested bits or lengths, for the start of a file and for the rest of a large one. Opening a
  // store is slow with sanitizers, so in the exhaustive run only the plain build tests each bit.
  const size_t kStep = Rounds(0) == 0 ? 41 : Rounds(0) < 100 ? 7 : 1;
  const size_t kLargeStep = Rounds(0) == 0 ? 10'007 : 509;

  static size_t Size(uint64_t index) { return index == kLarge ? kLargeRecord : 8 * index; }

  // On a file system in memory, because thousands of stores are made.
  DiskDamageTest() : StoreDirectoryTest(InMemory()) {
    auto store = Open();
    for (uint64_t i = 0; i < kSamples - 1; ++i) {
      if (i == kAbsent) continue;
      Put(*store, i, kGeneration, Content(i, kGeneration, Size(i)));
    }
    EXPECT_TRUE(store->Agree({{"r", "2"}}).ok());
    auto job = store->Join();
    (*job)->BeginFirstEpoch();
    job->reset();
    store.reset();
    files_ = ReadFiles(directory_);
    index_size_ = files_["index"].size();
    files_["index"].resize(kIndexBytes);
  }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  std::string Name(const std::string& prefix) const {
    for (const auto& [name, contents] : files_) {
      if (name.find(prefix) == 0) return name;
    }
    return "none";
  }

  void Restore() {
    for (const auto& entry : fs::directory_iterator(directory_)) {
      if (files_.count(entry.path().filename()) == 0) fs::remove(entry.path());
    }
    for (const auto& [name, contents] : files_) {
      const int fd = open(Path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      const ssize_t size = contents.size();
      ASSERT_EQ(pwrite(fd, contents.data(), size, 0), size);
      ASSERT_EQ(ftruncate(fd, name == "index" ? index_size_ : size), 0);
      close(fd);
    }
  }

  // Without valid settings the origin of the samples is unknown: nothing is changed, and the error says what to do.
  void ExpectRefused(const std::string& damage) {
    const auto before = ReadFiles(directory_);
    const absl::Status status = DiskStore::Open(directory_, {}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << damage;
    for (const char* part : {"overwrite=True", "Nothing was changed"}) {
      EXPECT_PRED_FORMAT2(testing::IsSubstring, part, std::string(status.message())) << damage;
    }
    auto after = ReadFiles(directory_);
    after.erase("lock");
    EXPECT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end())) << damage;
    DiskStoreOptions options;
    options.overwrite = true;
    options.read_queue = std::make_unique<ReadQueue>(1);
    auto store = Open(std::move(options));
    ASSERT_NE(store, nullptr) << damage;
    for (uint64_t i = 0; i < kSamples; ++i) EXPECT_EQ(Get(*store, i), "absent");
  }

  // Opens the store after files were damaged, and checks everything. Returns the number of samples present.
  int Examine(const std::string& damage) {
    DiskStoreOptions options;
    // At most one thread that reads, because thousands of stores are opened.
    options.read_queue = std::make_unique<ReadQueue>(1);
    auto opened = DiskStore::Open(directory_, std::move(options));
    EXPECT_TRUE(opened.ok()) << damage << ": " << opened.status().ToString();
    if (!opened.ok()) return 0;
    DiskStore& store = **opened;
    int present = 0;
    for (uint64_t i = 0; i < kSamples; ++i) {
      const std::string content = Get(store, i);
      if (content == "absent") continue;
      ++present;
      EXPECT_NE(i, kAbsent) << damage;
      EXPECT_EQ(content, Content(i, kGeneration, Size(i))) << damage;
      EXPECT_EQ(store.StoredGeneration(i), kGeneration) << damage;
    }
    // A damaged index word may still count as an entry.
    EXPECT_GE(store.Stats().entries, present) << damage;
    EXPECT_LE(store.Stats().entries, present + 1) << damage;
    // The store can be used again.
    for (uint64_t i = 0; i < kSamples; ++i) {
      const Generation generation = kGeneration + 1;
      const std::string content = Content(i, generation, 100);
      EXPECT_EQ(Put(store, i, generation, content), PutResult::kStored) << damage;
      EXPECT_EQ(Get(store, i), content) << damage;
    }
    store.Compact();
    EXPECT_EQ(store.Verify(), std::make_pair(int64_t{kSamples}, int64_t{0})) << damage;
    EXPECT_EQ(store.Stats().entries, kSamples) << damage;
    auto job = store.Join();
    EXPECT_TRUE(job.ok()) << damage;
    if (job.ok()) (*job)->BeginFirstEpoch();
    return present;
  }

  void FlipAndExamine(const std::string& name, size_t bit) {
    Restore();
    const int fd = open(Path(name).c_str(), O_RDWR | O_CLOEXEC);
    char byte;
    ASSERT_EQ(pread(fd, &byte, 1, bit / 8), 1);
    byte ^= 1 << bit % 8;
    ASSERT_EQ(pwrite(fd, &byte, 1, bit / 8), 1);
    close(fd);
    const std::string damage = name + ", bit " + std::to_string(bit);
    if (name == "store") {
      ExpectRefused(damage);
    } else {
      // One damaged bit costs at most one of six samples.
      ASSERT_GE(Examine(damage), static_cast<int>(kSamples) - 3);
    }
    ASSERT_FALSE(HasFailure());
  }

  void TruncateAndExamine(const std::string& name, size_t size) {
    Restore();
    ASSERT_EQ(truncate(Path(name).c_str(), size), 0);
    const std::string damage = name + ", truncated to " + std::to_string(size);
    if (name == "store") {
      ExpectRefused(damage);
    } else {
      Examine(damage);
    }
    ASSERT_FALSE(HasFailure());
  }

  std::map<std::string, std::string> files_;
  size_t index_size_ = 0;
  const Quiet quiet_;  // Hides warnings of damage.
};

TEST_F(DiskDamageTest, AnUndamagedStoreHasAllSamples) {
  Restore();
  EXPECT_EQ(Examine("nothing"), kSamples - 2);
}

TEST_F(DiskDamageTest, RefusesAnyFlippedBitInTheSettings) {
  for (size_t bit = 0; bit < 8 * files_["store"].size(); bit += kStep) {
    FlipAndExamine("store", bit);
  }
}

// Flips bits of counts, epochs and jobs, and the last bit of the file.
TEST_F(DiskDamageTest, SurvivesAnyFlippedBitInTheState) {
  for (size_t bit = 0; bit < 64 * 6; bit += kStep) FlipAndExamine("state", bit);
  FlipAndExamine("state", 8 * files_["state"].size() - 1);
}

// Includes the words of samples that are absent.
TEST_F(DiskDamageTest, SurvivesAnyFlippedBitInTheIndex) {
  for (size_t bit = 0; bit < 64 * kSamples; bit += kStep) {
    FlipAndExamine("index", bit);
  }
}

TEST_F(DiskDamageTest, SurvivesAnyFlippedBitInSmallRecords) {
  const std::string name = Name("small-");
  for (size_t bit = 0; bit < 8 * files_[name].size(); bit += kStep) {
    FlipAndExamine(name, bit);
  }
}

TEST_F(DiskDamageTest, SurvivesFlippedBitsInALargeRecord) {
  const std::string name = Name("large-");
  const size_t bits = 8 * files_[name].size();
  for (size_t bit = 0; bit < bits; bit += bit < 256 ? kStep : kLargeStep) {
    FlipAndExamine(name, bit);
  }
}

TEST_F(DiskDamageTest, HandlesTruncationToAnyLength) {
  for (const auto& [name, contents] : files_) {
    // The rest of a long file is uniform, so few lengths suffice there.
    const bool coarse = contents.size() > 1'000;
    for (size_t size = 0; size < contents.size(); size += !coarse || size < 64 ? kStep : kLargeStep) {
      TruncateAndExamine(name, size);
    }
  }
  TruncateAndExamine("index", index_size_ - 1);
}

TEST_F(DiskDamageTest, HandlesMissingFiles) {
  for (const auto& [name, contents] : files_) {
    Restore();
    fs::remove(Path(name));
    if (name == "store") {
      ExpectRefused("store removed");
    } else {
      Examine(name + " removed");
    }
  }
}

TEST_F(DiskDamageTest, SurvivesIndexWordsThatPointToOtherRecords) {
  Restore();
  std::string index = files_["index"];
  std::swap_ranges(&index[8 * 1], &index[8 * 2], &index[8 * 2]);
  // A second word that points to a record must not free that record's space.
  std::memcpy(&index[8 * kAbsent], &index[8 * kLarge], 8);
  const int fd = open(Path("index").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(pwrite(fd, index.data(), 128, 0), 128);
  close(fd);
  EXPECT_EQ(Examine("words swapped"), kSamples - 4);
}

TEST(RecordDamageTest, DetectsAnyFlippedBitAndAnyTruncation) {
  for (const size_t size : {0, 1, 100, 2'000}) {
    const std::string content = Content(7, 3, size);
    const size_t whole = sizeof(RecordHeader) + size;
    RecordBuffer record(whole);
    const RecordHeader header = MakeRecordHeader(1, 7, 3, size, Crc32c(content.data(), size));
    std::memcpy(record.data(), &header, sizeof(header));
    std::memcpy(record.data() + sizeof(header), content.data(), size);
    ASSERT_TRUE(record.Verify(1, 7, whole));
    EXPECT_FALSE(record.Verify(1, 8, whole));
    EXPECT_FALSE(record.Verify(2, 7, whole));
    for (size_t bit = 0; bit < 8 * whole; ++bit) {
      record.data()[bit / 8] ^= 1 << bit % 8;
      ASSERT_FALSE(record.Verify(1, 7, whole)) << bit;
      record.data()[bit / 8] ^= 1 << bit % 8;
    }
    for (size_t length = 0; length < whole; ++length) {
      ASSERT_FALSE(record.Verify(1, 7, length)) << length;
    }
  }
}

}  // namespace
}  // namespace refurbish_tf
