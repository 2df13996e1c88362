#include "refurbish_tf/cc/store/disk/settings_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "refurbish_tf/cc/store/disk/crc32c.h"
#include "refurbish_tf/cc/store/disk/record.h"

namespace refurbish_tf {
namespace {

constexpr char kTitle[] = "refurbish_tf cache store";
constexpr char kFormat[] = "format";
constexpr char kChecksum[] = "crc32c";
constexpr char kTemporarySuffix[] = ".new";
constexpr char kTemporaryName[] = "store.new";

std::string Checksum(const std::string& text) {
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x", Crc32c(text.data(), text.size()));
  return digits;
}

// A value takes one line.
std::string Escape(const std::string& value) {
  std::string line;
  for (const char c : value) {
    if (c == '\n') {
      line += "\\n";
    } else if (c == '\\') {
      line += "\\\\";
    } else {
      line += c;
    }
  }
  return line;
}

std::string Unescape(const std::string& line) {
  std::string value;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\\' && i + 1 < line.size()) {
      ++i;
      value += line[i] == 'n' ? '\n' : line[i];
    } else {
      value += line[i];
    }
  }
  return value;
}

absl::Status Damaged(const std::string& path) {
  return absl::DataLossError(absl::StrCat(
      "The file ", path, " is damaged, which says what is in the cache store."));
}

}  // namespace

absl::StatusOr<Settings> SettingsFile::Read() const {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) return absl::NotFoundError(path_);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot read ", path_));
  }
  std::string text;
  char buffer[4096];
  ssize_t count;
  while ((count = read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, count);
  const int error = errno;
  close(fd);
  if (count < 0) {
    return absl::ErrnoToStatus(error, absl::StrCat("Cannot read ", path_));
  }

  const size_t checksum = text.rfind(absl::StrCat("\n", kChecksum, " "));
  if (checksum == std::string::npos ||
      text.substr(checksum + 1) !=
          absl::StrCat(kChecksum, " ", Checksum(text.substr(0, checksum + 1)),
                       "\n")) {
    return Damaged(path_);
  }
  std::istringstream lines(text.substr(0, checksum + 1));
  std::string line;
  if (!std::getline(lines, line) || line != kTitle) return Damaged(path_);
  Settings settings;
  while (std::getline(lines, line)) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) return Damaged(path_);
    settings[line.substr(0, space)] = Unescape(line.substr(space + 1));
  }
  const std::string format = settings[kFormat];
  settings.erase(kFormat);
  if (std::atoi(format.c_str()) > kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "The cache store of ", path_, " has format ", format,
        ", but this refurbish_tf knows formats up to ", kFormatVersion,
        ". Nothing was changed. Use the newer refurbish_tf that wrote it, give "
        "another directory, or begin anew with overwrite=True."));
  }
  return settings;
}

absl::Status SettingsFile::Write(const Settings& settings) const {
  std::string text = absl::StrCat(kTitle, "\n", kFormat, " ", kFormatVersion, "\n");
  for (const auto& [name, value] : settings) {
    absl::StrAppend(&text, name, " ", Escape(value), "\n");
  }
  absl::StrAppend(&text, kChecksum, " ", Checksum(text), "\n");
  const std::string temporary = path_ + kTemporarySuffix;
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC,
                      0600);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot write ", temporary));
  }
  const ssize_t written = write(fd, text.data(), text.size());
  const int error = written < 0 ? errno : ENOSPC;
  close(fd);
  if (written != static_cast<ssize_t>(text.size())) {
    unlink(temporary.c_str());
    return absl::ErrnoToStatus(error, absl::StrCat("Cannot write ", temporary));
  }
  if (rename(temporary.c_str(), path_.c_str()) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot write ", path_));
  }
  return absl::OkStatus();
}

absl::StatusOr<Settings> SettingsFile::Agree(
    const Settings& settings, const std::string& lock_path) const {
  const int fd = open(lock_path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("Cannot open ", lock_path));
  }
  // Freed when the file is closed.
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  while (fcntl(fd, F_OFD_SETLKW, &lock) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    close(fd);
    return absl::ErrnoToStatus(error, absl::StrCat("Cannot lock ", lock_path));
  }
  absl::StatusOr<Settings> agreed = Read();
  if (agreed.ok()) {
    std::vector<std::string> differences;
    bool added = false;
    for (const auto& [name, value] : settings) {
      const auto [entry, is_new] = agreed->emplace(name, value);
      added |= is_new;
      if (entry->second != value) {
        differences.push_back(absl::StrCat(name, " is ", value, ", but it was ",
                                           entry->second));
      }
    }
    if (!differences.empty()) {
      std::string all;
      for (const std::string& difference : differences) {
        absl::StrAppend(&all, all.empty() ? "" : "; ", difference);
      }
      agreed = absl::FailedPreconditionError(all);
    } else if (added) {
      absl::Status status = Write(*agreed);
      if (!status.ok()) agreed = status;
    }
  }
  close(fd);
  return agreed;
}

bool SettingsFile::IsTemporaryName(const std::string& name) {
  return name == kTemporaryName;
}

}  // namespace refurbish_tf
