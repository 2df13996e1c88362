// Making indices of TFRecord files, and reading records with them.
#include "refurbish_tf/cc/sources/record_index.h"

#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "refurbish_tf/cc/sources/open_files.h"
#include "refurbish_tf/cc/sources/record_format.h"
#include "tests/cc/threads.h"

namespace refurbish_tf {
namespace {

std::string AsText(const void* data, size_t size) { return std::string(static_cast<const char*>(data), size); }

void ExpectSays(const absl::Status& status, const std::string& part) {
  EXPECT_PRED_FORMAT2(testing::IsSubstring, part, std::string(status.message()));
}

std::string Frame(const std::string& record) {
  const uint64_t length = record.size();
  const uint32_t length_crc = MaskedCrc(&length, sizeof(length));
  const uint32_t crc = MaskedCrc(record.data(), record.size());
  return AsText(&length, 8) + AsText(&length_crc, 4) + record + AsText(&crc, 4);
}

std::string FileOf(const std::vector<std::string>& records) {
  std::string text;
  for (const std::string& record : records) text += Frame(record);
  return text;
}

// Files in memory that simulate a remote file system. Counts reads.
class FakeFiles : public FileAccess {
 public:
  struct File {
    std::string text;
    FileIdentity identity;
  };

  explicit FakeFiles(bool small_reads = true) : small_reads_(small_reads) {}

  void Put(const std::string& path, const std::string& text) {
    auto file = std::make_shared<File>();
    file->text = text;
    file->identity.size = text.size();
    file->identity.inode = ++inodes_;
    files[path] = std::move(file);
  }

  bool small_reads() const override { return small_reads_; }
  int64_t identity_nanos() const override { return nanos; }

  absl::StatusOr<std::unique_ptr<RandomFile>> Open(const std::string& path) override {
    if (files.count(path) == 0) return absl::NotFoundError(path);
    ++num_opened;
    return std::make_unique<Opened>(this, path, files[path]);
  }
  absl::Status WriteWhole(const std::string& path, const std::string& content, bool) override {
    if (!writable) return absl::PermissionDeniedError(path);
    ++num_written;
    Put(path, content);
    return absl::OkStatus();
  }

  std::map<std::string, std::shared_ptr<File>> files;
  int64_t nanos = 0;
  bool writable = true;
  int num_reads = 0;
  uint64_t num_bytes = 0;
  int num_opened = 0;
  int num_open = 0;
  int num_written = 0;
  int num_looks = 0;
  // All files vanish after this many calls of `Identity`; never if below 0.
  int looks_left = -1;

 private:
  class Opened : public RandomFile {
   public:
    Opened(FakeFiles* files, std::string path, std::shared_ptr<File> file)
        : files_(files), path_(std::move(path)), file_(std::move(file)) {
      ++files_->num_open;
    }
    ~Opened() override { --files_->num_open; }

    absl::StatusOr<size_t> Read(uint64_t offset, size_t size, char* to) override {
      ++files_->num_reads;
      const size_t read = file_->text.copy(to, size, offset);
      files_->num_bytes += read;
      return read;
    }
    absl::StatusOr<size_t> ReadFramed(uint64_t offset, char* head, size_t head_size, char* body, size_t body_size,
                                      char* tail, size_t tail_size) override {
      std::string all(head_size + body_size + tail_size, '\0');
      absl::StatusOr<size_t> read = Read(offset, all.size(), all.data());
      all.copy(head, head_size);
      all.copy(body, body_size, head_size);
      all.copy(tail, tail_size, head_size + body_size);
      return read;
    }
    absl::StatusOr<FileIdentity> Identity() override {
      ++files_->num_looks;
      const auto found = files_->files.find(path_);
      if (found == files_->files.end() || files_->looks_left-- == 0) {
        return absl::NotFoundError(path_);
      }
      return found->second->identity;
    }

   private:
    FakeFiles* const files_;
    const std::string path_;
    const std::shared_ptr<File> file_;
  };

  const bool small_reads_;
  uint64_t inodes_ = 0;
};

using Index = std::shared_ptr<const RecordIndex>;

absl::StatusOr<Index> Make(FileAccess* files, const std::vector<std::string>& paths,
                           const std::string& directory = "") {
  IndexOptions options;
  options.directory = directory;
  options.access = [files](const std::string&) { return files; };
  return LoadOrMakeIndex(paths, options);
}

absl::StatusOr<std::string> Read(OpenFiles* open, const Index& index, int64_t record, int64_t since = 0) {
  std::string text;
  absl::Status status = ReadRecord(open, index->At(record), since, [&text](size_t length) {
    text.resize(length);
    return text.data();
  });
  if (!status.ok()) return status;
  return text;
}

OpenFiles NewOpenFiles(size_t most = 8) {
  return OpenFiles(most, [] { return int64_t{0}; });
}

TEST(RecordIndexTest, ReadsOnlyHeaders) {
  FakeFiles files;
  files.Put("d/a", FileOf(std::vector<std::string>(100, std::string(20000, 'x'))));
  ASSERT_TRUE(Make(&files, {"d/a"}).ok());
  EXPECT_LE(files.num_reads, 101);
  EXPECT_LE(files.num_bytes, 100 * kHeaderSize + (1 << 16));
}

TEST(RecordIndexTest, RemoteFilesAreReadInBlocks) {
  FakeFiles files(/*small_reads=*/false);
  files.Put("d/a", FileOf(std::vector<std::string>(1000, std::string(5000, 'x'))));
  ASSERT_TRUE(Make(&files, {"d/a"}).ok());
  EXPECT_LE(files.num_reads, 6);
}

TEST(RecordIndexTest, SerializesToFourBytesPerRecord) {
  FileIndex index;
  for (int i = 0; i < 1600; ++i) index.Add(i);
  index.Trim();
  FileIdentity identity;
  identity.size = index.At(1599).offset + kFrameSize + 1599;
  const std::string text = index.Serialize(identity);
  EXPECT_EQ(text.size(), 48 + 4 * 1600 + 4u);
  EXPECT_LE(text.size(), FileIndex::MostBytes(identity.size));
  EXPECT_TRUE(FileIndex::Parse(text, identity) == index);
}

TEST(RecordIndexTest, UsesOnlyACompleteIndexOfTheSameFile) {
  FakeFiles files;
  files.Put("d/a", FileOf({"one", "two", "three"}));
  ASSERT_TRUE(Make(&files, {"d/a"}).ok());
  const std::string kept = "d/.refurbish_tf/a.index";
  ASSERT_EQ(files.files.count(kept), 1u);
  const std::string right = files.files[kept]->text;
  const FileIdentity identity = files.files["d/a"]->identity;
  for (size_t i = 0; i < right.size(); ++i) {
    std::string wrong = right;
    wrong[i] ^= 1;
    EXPECT_FALSE(FileIndex::Parse(wrong, identity).has_value()) << i;
    EXPECT_FALSE(FileIndex::Parse(right.substr(0, i), identity).has_value());
  }
  EXPECT_FALSE(FileIndex::Parse(right + "x", identity).has_value());
  for (FileIdentity other : {identity, identity, identity, identity}) {
    static int field = 0;
    if (field == 0) other.size += 1;
    if (field == 1) other.mtime_nanos += 1;
    if (field == 2) other.ctime_nanos += 1;
    if (field == 3) other.inode += 1;
    ++field;
    EXPECT_FALSE(FileIndex::Parse(right, other).has_value());
  }
  // A truncated index is made again; a file that is not an index is not overwritten.
  files.files[kept]->text = right.substr(0, right.size() - 1);
  EXPECT_EQ((*Make(&files, {"d/a"}))->num_records(), 3);
  EXPECT_EQ(files.files[kept]->text, right);
  files.files[kept]->text = "a letter";
  EXPECT_TRUE(absl::IsInvalidArgument(Make(&files, {"d/a"}).status()));
  EXPECT_EQ(files.files[kept]->text, "a letter");
}

TEST(RecordIndexTest, AForgedIndexNeverYieldsWrongRecords) {
  FakeFiles files;
  files.Put("d/a", FileOf({"one", "two", "three"}));
  const FileIdentity identity = files.files["d/a"]->identity;
  // The last record ends at the same offset, so checksum and size are right.
  FileIndex made_up;
  for (uint32_t length : {2, 4, 5}) made_up.Add(length);
  files.Put("d/.refurbish_tf/a.index", made_up.Serialize(identity));
  absl::StatusOr<Index> index = Make(&files, {"d/a"});
  ASSERT_TRUE(index.ok()) << index.status();
  OpenFiles open = NewOpenFiles();
  EXPECT_TRUE(absl::IsDataLoss(Read(&open, *index, 0).status()));
  EXPECT_TRUE(absl::IsDataLoss(Read(&open, *index, 1).status()));
  EXPECT_EQ(*Read(&open, *index, 2), "three");
  // An index with too few records, or beyond the end of the file, is not used.
  FileIndex shorter, longer;
  for (uint32_t length : {3, 3}) shorter.Add(length);
  for (uint32_t length : {3, 3, 1 << 30}) longer.Add(length);
  for (const FileIndex& wrong : {shorter, longer}) {
    EXPECT_FALSE(FileIndex::Parse(wrong.Serialize(identity), identity).has_value());
  }
}

TEST(RecordIndexTest, InvalidFilesAreReportedImmediatelyWithTheOffset) {
  const std::string right = FileOf({"one", "two"});
  struct Case {
    std::string text, message;
  };
  for (const Case& wrong : std::vector<Case>{{"0123456789abcdef0123456789", "(record 0 at offset 0)"},
                                             {"short", "(record 0 at offset 0)"},
                                             {right + "x", "(record 2 at offset 38)"},
                                             {right + right.substr(0, 17), "(record 2 at offset 38)"},
                                             {right.substr(0, 30), "(record 1 at offset 19)"}}) {
    FakeFiles files;
    files.Put("d/a", wrong.text);
    absl::Status status = Make(&files, {"d/a"}).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    ExpectSays(status, wrong.message);
    EXPECT_EQ(files.num_written, 0);
  }
  // A huge length with a correct checksum must not make the reader allocate memory.
  const uint64_t length = uint64_t{1} << 60;
  const uint32_t crc = MaskedCrc(&length, 8);
  FakeFiles files;
  files.Put("d/a", AsText(&length, 8) + AsText(&crc, 4) + std::string(20, 'x'));
  EXPECT_TRUE(absl::IsDataLoss(Make(&files, {"d/a"}).status()));
}

TEST(RecordIndexTest, CompressedFilesAreRefused) {
  for (const char* start : {"\x1f\x8b", "\x78\x01", "\x78\x9c", "\x78\xda"}) {
    FakeFiles files;
    files.Put("d/a", start + std::string(40, 'x'));
    absl::Status status = Make(&files, {"d/a"}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    ExpectSays(status, "compressed");
  }
  // The first bytes of a file are a record's length, which may look like the start of a gzip file.
  FakeFiles files;
  files.Put("d/a", FileOf({std::string(0x8b1f, 'x'), "two"}));
  EXPECT_EQ((*Make(&files, {"d/a"}))->num_records(), 2);
}

TEST(RecordIndexTest, AnUnwritableDirectoryIsAnErrorOnlyIfItWasGiven) {
  FakeFiles files;
  files.Put("d/a", FileOf({"one"}));
  files.writable = false;
  EXPECT_EQ((*Make(&files, {"d/a"}))->num_records(), 1);
  EXPECT_TRUE(absl::IsInvalidArgument(Make(&files, {"d/a"}, "i").status()));
}

TEST(RecordIndexTest, AFileDeletedDuringIndexingIsReported) {
  // The file vanishes after it was opened, or after it was read.
  for (int looks : {0, 1}) {
    FakeFiles files;
    files.Put("d/a", FileOf({"one"}));
    files.looks_left = looks;
    absl::Status status = Make(&files, {"d/a"}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    ExpectSays(status, "d/a ");
    EXPECT_EQ(files.num_written, 0);
  }
}

TEST(RecordIndexTest, FilesWithTheSameNameHaveSeparateIndices) {
  std::set<std::string> paths;
  for (const std::string& path : {std::string("a/x"), std::string("b/x"), "a/" + std::string(255, 'x'),
                                  "a/" + std::string(254, 'x'), "b/" + std::string(255, 'x')}) {
    for (const std::string directory : {"", "i"}) {
      const std::string kept = IndexPath(path, directory);
      EXPECT_TRUE(paths.insert(kept).second) << kept;
      EXPECT_LE(kept.size() - kept.rfind('/'), 256u);
    }
  }
}

TEST(OpenFilesTest, AChangedFileIsAnError) {
  FakeFiles files;
  files.Put("d/a", FileOf({"one", "two"}));
  absl::StatusOr<Index> index = Make(&files, {"d/a"});
  OpenFiles open = NewOpenFiles();
  EXPECT_EQ(*Read(&open, *index, 0), "one");
  files.Put("d/a", FileOf({"ONE", "TWO"}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsFailedPrecondition(Read(&open, *index, i).status()));
  }
  // It is also an error for a file that was not open before, and for a deleted file.
  OpenFiles others = NewOpenFiles();
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(&others, *index, 0).status()));
  files.files.clear();
  OpenFiles more = NewOpenFiles();
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(&more, *index, 0).status()));
}

TEST(OpenFilesTest, LimitsChecksForChangesOnSlowFileSystems) {
  FakeFiles files;
  files.nanos = 100;
  files.Put("d/a", FileOf({"one", "two"}));
  absl::StatusOr<Index> index = Make(&files, {"d/a"});
  int64_t now = 1000;
  OpenFiles open(8, [&now] { return now; });
  EXPECT_EQ(*Read(&open, *index, 0), "one");
  const int looks = files.num_looks;
  now = 1099;
  EXPECT_EQ(*Read(&open, *index, 1), "two");
  EXPECT_EQ(files.num_looks, looks);
  files.Put("d/a", FileOf({"ONE", "TWO"}));
  EXPECT_EQ(*Read(&open, *index, 1), "two");
  // An iterator that began later checks the file again.
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(&open, *index, 1, 1050).status()));
  now = 1100;
  EXPECT_TRUE(absl::IsFailedPrecondition(Read(&open, *index, 1).status()));
}

TEST(OpenFilesTest, ServesManyThreads) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/record_index_test.", getpid());
  ASSERT_EQ(mkdir(directory.c_str(), 0777), 0);
  std::vector<std::string> paths;
  for (int i = 0; i < 6; ++i) {
    paths.push_back(absl::StrCat(directory, "/", i));
    ASSERT_TRUE(LocalFiles()
                    .WriteWhole(paths.back(), FileOf({absl::StrCat("record ", i), "", "x"}),
                                /*follow=*/false)
                    .ok());
  }
  IndexOptions options;
  options.num_threads = 4;
  options.access = [](const std::string&) { return &LocalFiles(); };
  absl::StatusOr<Index> index = LoadOrMakeIndex(paths, options);
  ASSERT_TRUE(index.ok()) << index.status();
  OpenFiles open = NewOpenFiles(2);
  Threads(4, [&](int thread) {
    for (int i = 0; i < 200; ++i) {
      const int file = (i * (thread + 1)) % 6;
      absl::StatusOr<std::string> read = Read(&open, *index, 3 * file);
      ASSERT_TRUE(read.ok()) << read.status();
      ASSERT_EQ(*read, absl::StrCat("record ", file));
    }
  }).Join();
  EXPECT_LE(open.num_open(), 2u);
  EXPECT_EQ(std::system(absl::StrCat("rm -r '", directory, "'").c_str()), 0);
}

TEST(LocalFilesTest, OpensOnlyRegularFiles) {
  const std::string directory = absl::StrCat(::testing::TempDir(), "/local_files_test.", getpid());
  ASSERT_EQ(mkdir(directory.c_str(), 0777), 0);
  const std::string pipe = directory + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0666), 0);
  // Opening the pipe would wait permanently for a writer.
  EXPECT_TRUE(absl::IsInvalidArgument(LocalFiles().Open(pipe).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(LocalFiles().Open(directory).status()));
  EXPECT_TRUE(absl::IsNotFound(LocalFiles().Open(directory + "/none").status()));
  EXPECT_TRUE(LocalFiles().WriteWhole(directory + "/new/file", "text", false).ok());
  EXPECT_EQ(*LocalFiles().ReadWhole("file://" + directory + "/new/file", 4), "text");
  EXPECT_TRUE(absl::IsResourceExhausted(LocalFiles().ReadWhole(directory + "/new/file", 3).status()));
  EXPECT_FALSE(LocalFiles().WriteWhole(directory + "/no/such/file", "", true).ok());
  // An open file notices that another file has taken its name.
  absl::StatusOr<std::unique_ptr<RandomFile>> file = LocalFiles().Open(directory + "/new/file");
  EXPECT_EQ((*file)->Identity()->size, 4u);
  EXPECT_TRUE(LocalFiles().WriteWhole(directory + "/new/file", "TEXT", true).ok());
  EXPECT_TRUE(absl::IsNotFound((*file)->Identity().status()));
  // Nothing is written through a link, unless requested.
  const std::string link = directory + "/link";
  ASSERT_EQ(symlink((directory + "/new").c_str(), link.c_str()), 0);
  EXPECT_TRUE(LocalFiles().IsLink("file://" + link));
  EXPECT_FALSE(LocalFiles().IsLink(directory + "/new"));
  EXPECT_FALSE(LocalFiles().WriteWhole(link + "/a", "", false).ok());
  EXPECT_TRUE(LocalFiles().WriteWhole(link + "/b", "", true).ok());
  EXPECT_TRUE(absl::IsNotFound(LocalFiles().Open(link + "/a").status()));
  EXPECT_TRUE(LocalFiles().Open(link + "/b").ok());
  EXPECT_EQ(std::system(absl::StrCat("rm -r '", directory, "'").c_str()), 0);
}

}  // namespace
}  // namespace refurbish_tf
