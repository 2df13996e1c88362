#include "refurbish_tf/cc/sources/record_index.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr char kDirectory[] = ".refurbish_tf";
constexpr char kEnding[] = ".index";
// Most file systems allow names of 255 bytes.
constexpr size_t kLongestFileName = 200;

// FNV-1a: the same on all machines and in all versions, because it names files.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
  }
  return hash;
}

// The present state of a file that is being indexed. Fails if the file was
// removed, or if `expected` is given and the file is not in that state.
absl::StatusOr<FileIdentity> CurrentIdentity(
    RandomFile& file, const std::string& path,
    const FileIdentity* expected = nullptr) {
  absl::StatusOr<FileIdentity> identity = file.Identity();
  if (identity.ok() ? expected == nullptr || *identity == *expected
                    : !absl::IsNotFound(identity.status())) {
    return identity;
  }
  return FailedPrecondition(
      path,
      " was changed or removed while its index was made. Make the dataset "
      "when the file is complete.");
}

// The error for a file that cannot be opened, probably due to a wrong path.
absl::Status CannotOpen(const std::string& path, const absl::Status& status) {
  // Not all file systems name the file in their messages.
  const std::string what = absl::StrContains(status.message(), path)
                               ? std::string(status.message())
                               : absl::StrCat(path, ": ", status.message());
  if (absl::IsUnimplemented(status)) {
    return InvalidArgument(
        what,
        ". Give local paths, or paths on a file system that TensorFlow "
        "supports, such as gs://. Download files from a web server first, for "
        "example with tf.keras.utils.get_file.");
  }
  if (!absl::IsNotFound(status) && !absl::IsPermissionDenied(status) &&
      !absl::IsFailedPrecondition(status)) {
    return status;
  }
  return InvalidArgument(
      what,
      ". Give paths of files that exist and can be read; expand "
      "patterns with tf.io.gfile.glob.");
}

// Reads the stored index. Empty if there is none that fits the file.
absl::StatusOr<std::optional<FileIndex>> ReadStored(
    FileAccess& access, const std::string& index_path, bool is_beside,
    const IndexedFile& file) {
  absl::StatusOr<std::string> text =
      access.ReadWhole(index_path, FileIndex::MostBytes(file.identity.size));
  if (absl::IsNotFound(text.status())) return std::nullopt;
  if (absl::IsPermissionDenied(text.status()) && is_beside) return std::nullopt;
  // Too long for an index of this file, so `ReadWhole` has not read it.
  if (absl::IsResourceExhausted(text.status())) return std::nullopt;
  if (!text.ok()) {
    return InvalidArgument("The index of ", file.path,
                           " cannot be read: ", text.status().message(),
                           ". Remove it, or give another index_dir.");
  }
  if (!FileIndex::LooksLikeOne(*text)) {
    return InvalidArgument(
        index_path,
        " is not an index of refurbish_tf, but has the name of the index of ",
        file.path, ". Remove it, or give another index_dir.");
  }
  return FileIndex::Parse(*text, file.identity);
}

absl::Status LoadOrMake(const IndexOptions& options, IndexedFile* file) {
  file->access = options.access(file->path);
  absl::StatusOr<std::unique_ptr<RandomFile>> opened =
      file->access->Open(file->path);
  if (!opened.ok()) return CannotOpen(file->path, opened.status());
  RandomFile& open = **opened;
  RTF_ASSIGN_OR_RETURN(file->identity, CurrentIdentity(open, file->path));
  const bool is_beside = options.directory.empty();
  const std::string index_path = IndexPath(file->path, options.directory);
  // The index may be on another file system than the file.
  FileAccess* const index_access = options.access(index_path);
  const std::string directory = index_path.substr(0, index_path.rfind('/'));
  if (is_beside && index_access->IsLink(directory)) {
    return InvalidArgument(
        directory,
        " is a symbolic link. Indices are kept in a directory of this name "
        "next to their files; anybody who can write there may have made the "
        "link, so it is not followed. Remove it, or give index_dir.");
  }
  RTF_ASSIGN_OR_RETURN(std::optional<FileIndex> stored,
                       ReadStored(*index_access, index_path, is_beside, *file));
  if (stored.has_value()) {
    file->index = std::move(*stored);
    return absl::OkStatus();
  }
  absl::StatusOr<FileIndex> made = ScanRecords(
      &open, file->identity.size, file->access->small_reads(), file->path);
  RTF_RETURN_IF_ERROR(
      CurrentIdentity(open, file->path, &file->identity).status());
  if (!made.ok()) return made.status();
  file->index = std::move(*made);
  absl::Status written = index_access->WriteWhole(
      index_path, file->index.Serialize(file->identity), !is_beside);
  if (!written.ok() && !is_beside) {
    return InvalidArgument("index_dir cannot be used: ", written.message(),
                           ". Give a writable directory.");
  }
  return absl::OkStatus();
}

}  // namespace

RecordIndex::RecordIndex(std::vector<IndexedFile> files)
    : files_(std::move(files)) {
  int64_t end = 0;
  for (const IndexedFile& file : files_) {
    end += static_cast<int64_t>(file.index.num_records());
    ends_.push_back(end);
  }
}

RecordIndex::Location RecordIndex::At(int64_t record) const {
  // `upper_bound` skips empty files, which end where the file before them ends.
  const size_t file =
      std::upper_bound(ends_.begin(), ends_.end(), record) - ends_.begin();
  Location location;
  location.file = &files_[file];
  location.record =
      static_cast<uint64_t>(record - (file == 0 ? 0 : ends_[file - 1]));
  location.span = location.file->index.At(location.record);
  return location;
}

std::string IndexPath(const std::string& path, const std::string& directory) {
  const size_t slash = path.rfind('/');
  const std::string parent =
      slash == std::string::npos ? "." : path.substr(0, slash);
  std::string name = slash == std::string::npos ? path : path.substr(slash + 1);
  // index_dir may hold indices of files of one name from many directories, and
  // long names must be cut, so a hash of the path makes them unique.
  if (!directory.empty() || name.size() > kLongestFileName) {
    name = absl::StrCat(name.substr(0, kLongestFileName - 32), "-",
                        absl::Hex(Hash(path), absl::kZeroPad16));
  }
  return directory.empty()
             ? absl::StrCat(parent, "/", kDirectory, "/", name, kEnding)
             : absl::StrCat(directory, "/", name, kEnding);
}

absl::StatusOr<std::shared_ptr<const RecordIndex>> LoadOrMakeIndex(
    const std::vector<std::string>& paths, const IndexOptions& options) {
  std::vector<IndexedFile> files(paths.size());
  // One for each file: if several fail, the first file's error is returned.
  std::vector<absl::Status> statuses(paths.size());
  {
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    const auto work = [&] {
      while (!failed) {
        const size_t i = next++;
        if (i >= paths.size()) return;
        files[i].path = paths[i];
        statuses[i] = LoadOrMake(options, &files[i]);
        if (!statuses[i].ok()) failed = true;
      }
    };
    std::vector<std::thread> threads;
    const size_t num_threads =
        std::min<size_t>(paths.size(), std::max(1, options.num_threads));
    for (size_t i = 1; i < num_threads; ++i) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
  }
  for (absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return std::make_shared<const RecordIndex>(std::move(files));
}

}  // namespace refurbish_tf
