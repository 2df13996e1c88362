#include "refurbish_tf/cc/sources/file_access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "refurbish_tf/cc/base/entropy.h"
#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {
namespace {

constexpr char kScheme[] = "file://";

std::string LocalPath(const std::string& path) {
  return absl::StartsWith(path, kScheme) ? path.substr(sizeof(kScheme) - 1)
                                         : path;
}

absl::Status SystemError(const char* what, const std::string& path) {
  return ErrnoError("Cannot ", what, " ", path);
}

int64_t Nanos(const timespec& time) {
  return int64_t{1000000000} * time.tv_sec + time.tv_nsec;
}

class LocalFile : public RandomFile {
 public:
  LocalFile(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}
  ~LocalFile() override { close(descriptor_); }

  absl::StatusOr<size_t> Read(uint64_t offset, size_t size, char* to) override {
    iovec part = {to, size};
    return ReadParts(offset, &part, 1);
  }

  absl::StatusOr<size_t> ReadFramed(uint64_t offset, char* head,
                                    size_t head_size, char* body,
                                    size_t body_size, char* tail,
                                    size_t tail_size) override {
    iovec parts[] = {{head, head_size}, {body, body_size}, {tail, tail_size}};
    return ReadParts(offset, parts, 3);
  }

  absl::StatusOr<FileIdentity> Identity() override {
    struct stat found;
    if (fstat(descriptor_, &found) != 0) return SystemError("stat", path_);
    // The name was removed or given to another file. The times show this only
    // if the file system's clock has ticked since.
    if (found.st_nlink == 0) {
      return NotFound(path_, " is gone");
    }
    return FileIdentity{static_cast<uint64_t>(found.st_size),
                        Nanos(found.st_mtim), Nanos(found.st_ctim),
                        static_cast<uint64_t>(found.st_ino)};
  }

 private:
  absl::StatusOr<size_t> ReadParts(uint64_t offset, iovec* parts, int count) {
    size_t wanted = 0;
    for (int i = 0; i < count; ++i) wanted += parts[i].iov_len;
    size_t total = 0;
    while (total < wanted) {
      const ssize_t read = TEMP_FAILURE_RETRY(preadv(
          descriptor_, parts, count, static_cast<off_t>(offset + total)));
      if (read < 0) return SystemError("read", path_);
      if (read == 0) break;
      total += static_cast<size_t>(read);
      size_t done = static_cast<size_t>(read);
      for (; count > 0 && done >= parts->iov_len; ++parts, --count) {
        done -= parts->iov_len;
      }
      if (count > 0) {
        parts->iov_base = static_cast<char*>(parts->iov_base) + done;
        parts->iov_len -= done;
      }
    }
    return total;
  }

  const std::string path_;
  const int descriptor_;
};

class LocalFileAccess : public FileAccess {
 public:
  bool small_reads() const override { return true; }
  // Every read is followed by `fstat`, which is much cheaper than the read.
  int64_t identity_nanos() const override { return 0; }

  absl::StatusOr<std::unique_ptr<RandomFile>> Open(
      const std::string& path) override {
    const std::string local = LocalPath(path);
    // Without O_NONBLOCK, opening a pipe would wait for a writer.
    const int descriptor = static_cast<int>(TEMP_FAILURE_RETRY(
        open(local.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)));
    if (descriptor < 0) return SystemError("open", path);
    auto file = std::make_unique<LocalFile>(path, descriptor);
    struct stat found;
    if (fstat(descriptor, &found) != 0) return SystemError("stat", path);
    if (!S_ISREG(found.st_mode)) {
      return InvalidArgument(
          path, S_ISDIR(found.st_mode) ? " is a directory" : " is not a file");
    }
    return file;
  }

  bool IsLink(const std::string& path) override {
    struct stat found;
    return lstat(LocalPath(path).c_str(), &found) == 0 &&
           S_ISLNK(found.st_mode);
  }

  absl::Status WriteWhole(const std::string& path, const std::string& content,
                          bool follow) override {
    static std::atomic<uint64_t> counter{0};
    // Not the process id, which processes in different containers can share.
    static const uint64_t run = NewNumber();
    const std::string target = LocalPath(path);
    const size_t slash = target.rfind('/');
    const std::string directory = target.substr(0, slash);
    if (mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) {
      return SystemError("make the directory", directory);
    }
    const int parent =
        open(directory.c_str(),
             O_PATH | O_DIRECTORY | O_CLOEXEC | (follow ? 0 : O_NOFOLLOW));
    if (parent < 0) return SystemError("write to", directory);
    // Not derived from the target's name, which may be as long as is allowed.
    const std::string provisional =
        absl::StrCat(".", absl::Hex(run), "-", counter++, ".part");
    absl::Status status = WriteAs(parent, provisional, content, path);
    if (status.ok() && renameat(parent, provisional.c_str(), parent,
                                target.c_str() + slash + 1) != 0) {
      status = SystemError("write", path);
    }
    if (!status.ok()) unlinkat(parent, provisional.c_str(), 0);
    close(parent);
    return status;
  }

 private:
  static absl::Status WriteAs(int parent, const std::string& name,
                              const std::string& content,
                              const std::string& path) {
    const int descriptor =
        openat(parent, name.c_str(),
               O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (descriptor < 0) return SystemError("write", path);
    absl::Status status = WriteAll(descriptor, content, path);
    if (close(descriptor) != 0) status.Update(SystemError("write", path));
    return status;
  }

  static absl::Status WriteAll(int descriptor, const std::string& content,
                               const std::string& path) {
    for (size_t done = 0; done < content.size();) {
      const ssize_t written = TEMP_FAILURE_RETRY(
          write(descriptor, content.data() + done, content.size() - done));
      if (written < 0) return SystemError("write", path);
      done += static_cast<size_t>(written);
    }
    return absl::OkStatus();
  }
};

}  // namespace

absl::StatusOr<std::string> FileAccess::ReadWhole(const std::string& path,
                                                  uint64_t most) {
  RTF_ASSIGN_OR_RETURN(const std::unique_ptr<RandomFile> file, Open(path));
  RTF_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
  if (identity.size > most) {
    return ResourceExhausted(path, " is too long");
  }
  std::string content(identity.size, '\0');
  RTF_ASSIGN_OR_RETURN(const size_t read,
                       file->Read(0, content.size(), content.data()));
  content.resize(read);
  return content;
}

bool IsLocal(const std::string& path) {
  return absl::StartsWith(path, kScheme) || !absl::StrContains(path, "://");
}

FileAccess& LocalFiles() {
  static LocalFileAccess* const files =
      new LocalFileAccess;  // Never destroyed.
  return *files;
}

}  // namespace refurbish_tf
