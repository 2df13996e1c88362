#include "refurbish_tf/cc/kernels/sources/tensorflow_files.h"

#include <atomic>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/file_statistics.h"
#include "tensorflow/core/platform/file_system.h"

namespace refurbish_tf {
namespace {

using tensorflow::Env;
using tensorflow::FileStatistics;
using tensorflow::RandomAccessFile;
using tensorflow::WritableFile;

// For how long a file's identity is trusted: on a remote service each check
// takes about ten milliseconds.
constexpr int64_t kIdentityNanos = 2000000000;

absl::StatusOr<FileIdentity> IdentityAt(const std::string& path) {
  FileStatistics found;
  TF_RETURN_IF_ERROR(Env::Default()->Stat(path, &found));
  if (found.is_directory) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory"));
  }
  FileIdentity identity;
  identity.size = static_cast<uint64_t>(found.length);
  identity.mtime_nanos = found.mtime_nsec;
  return identity;
}

// TensorFlow 2.19 lacks the overload with a span; later versions have
// deprecated the other one. The argument 0 selects the first if it compiles.
template <class File>
auto ReadAt(const File& file, uint64_t offset, absl::Span<char> to,
            absl::string_view* read, int /*preferred*/)
    -> decltype(file.Read(offset, *read, to)) {
  return file.Read(offset, *read, to);
}
template <class File>
absl::Status ReadAt(const File& file, uint64_t offset, absl::Span<char> to,
                    absl::string_view* read, long /*else*/) {
  return file.Read(offset, to.size(), read, to.data());
}

class TensorFlowFile : public RandomFile {
 public:
  TensorFlowFile(std::string path, std::unique_ptr<RandomAccessFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}

  absl::StatusOr<size_t> Read(uint64_t offset, size_t size, char* to) override {
    absl::string_view read;
    absl::Status status = ReadAt(*file_, offset, absl::MakeSpan(to, size),
                                 &read, /*preferred=*/0);
    // OutOfRange marks the end of the file.
    if (!status.ok() && !absl::IsOutOfRange(status)) return status;
    if (read.data() != to) std::memmove(to, read.data(), read.size());
    return read.size();
  }

  absl::StatusOr<size_t> ReadFramed(uint64_t offset, char* head,
                                    size_t head_size, char* body,
                                    size_t body_size, char* tail,
                                    size_t tail_size) override {
    // Reads all three parts with one request.
    const size_t size = head_size + body_size + tail_size;
    const std::unique_ptr<char[]> scratch(new char[size]);
    absl::StatusOr<size_t> read = Read(offset, size, scratch.get());
    if (!read.ok() || *read < size) return read;
    std::memcpy(head, scratch.get(), head_size);
    if (body_size > 0) {
      std::memcpy(body, scratch.get() + head_size, body_size);
    }
    std::memcpy(tail, scratch.get() + head_size + body_size, tail_size);
    return read;
  }

  absl::StatusOr<FileIdentity> Identity() override { return IdentityAt(path_); }

 private:
  const std::string path_;
  const std::unique_ptr<RandomAccessFile> file_;
};

class TensorFlowFileAccess : public FileAccess {
 public:
  bool small_reads() const override { return false; }
  int64_t identity_nanos() const override { return kIdentityNanos; }

  absl::StatusOr<std::unique_ptr<RandomFile>> Open(
      const std::string& path) override {
    // Some file systems open a missing file, and fail only when it is read.
    TF_RETURN_IF_ERROR(IdentityAt(path).status());
    std::unique_ptr<RandomAccessFile> file;
    TF_RETURN_IF_ERROR(Env::Default()->NewRandomAccessFile(path, &file));
    return std::make_unique<TensorFlowFile>(path, std::move(file));
  }

  absl::Status WriteWhole(const std::string& path, const std::string& content,
                          bool) override {
    static std::atomic<uint64_t> counter{0};
    Env* const env = Env::Default();
    const std::string directory = path.substr(0, path.rfind('/'));
    absl::Status status = env->CreateDir(directory);
    if (!status.ok() && !absl::IsAlreadyExists(status)) return status;
    const std::string provisional = absl::StrCat(
        directory, "/.", absl::Hex(env->NowNanos()), "-", counter++, ".part");
    std::unique_ptr<WritableFile> file;
    status = env->NewWritableFile(provisional, &file);
    if (!status.ok()) return status;
    status = file->Append(content);
    status.Update(file->Close());
    if (status.ok()) status = env->RenameFile(provisional, path);
    if (!status.ok()) env->DeleteFile(provisional).IgnoreError();
    return status;
  }
};

}  // namespace

FileAccess* AccessTo(const std::string& path) {
  static TensorFlowFileAccess* const others = new TensorFlowFileAccess;
  return IsLocal(path) ? &LocalFiles() : others;
}

}  // namespace refurbish_tf
