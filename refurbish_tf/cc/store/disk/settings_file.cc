#include "refurbish_tf/cc/store/disk/settings_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/strings/str_replace.h"
#include "refurbish_tf/cc/base/crc32c.h"
#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/store/disk/location.h"

namespace refurbish_tf {
namespace {

constexpr char kTitle[] = "refurbish_tf cache store";
constexpr char kFormat[] = "format";
constexpr char kChecksum[] = "crc32c";
constexpr char kId[] = "id";
constexpr char kTemporaryName[] = "store.new";
// Much longer than any real settings. Somebody may have replaced the file by
// one that does not fit into memory.
constexpr size_t kLongestSettings = 16 << 20;

std::string Checksum(const std::string& text) {
  char digits[9];
  std::snprintf(digits, sizeof(digits), "%08x",
                Crc32c(text.data(), text.size()));
  return digits;
}

// Values may have several lines, but the file has one line for each setting.
std::string Escape(const std::string& value) {
  return absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\n", "\\n"}});
}

std::string Unescape(const std::string& line) {
  return absl::StrReplaceAll(line, {{"\\\\", "\\"}, {"\\n", "\n"}});
}

absl::Status DamagedSettings(const std::string& path) {
  return DataLoss("The file ", path,
                  ", which describes the cache store, is damaged.");
}

}  // namespace

absl::StatusOr<StoreContents> SettingsFile::Read() const {
  RTF_ASSIGN_OR_RETURN(const std::shared_ptr<File> file,
                       directory_->OpenFile(kName));
  std::string text;
  char buffer[4096];
  ssize_t count;
  while ((count = pread(file->fd(), buffer, sizeof(buffer), text.size())) > 0) {
    text.append(buffer, count);
    if (text.size() > kLongestSettings) return DamagedSettings(path());
  }
  if (count < 0) {
    return ErrnoError("Cannot read ", path());
  }

  const size_t checksum = text.rfind(absl::StrCat("\n", kChecksum, " "));
  if (checksum == std::string::npos ||
      text.substr(checksum + 1) !=
          absl::StrCat(kChecksum, " ", Checksum(text.substr(0, checksum + 1)),
                       "\n")) {
    return DamagedSettings(path());
  }
  std::istringstream lines(text.substr(0, checksum + 1));
  std::string line;
  if (!std::getline(lines, line) || line != kTitle) {
    return DamagedSettings(path());
  }
  StoreContents contents;
  Settings& settings = contents.settings;
  while (std::getline(lines, line)) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) return DamagedSettings(path());
    settings[line.substr(0, space)] = Unescape(line.substr(space + 1));
  }
  const std::string format = settings[kFormat];
  settings.erase(kFormat);
  if (format != absl::StrCat(kFormatVersion)) {
    return Unimplemented(
        "The cache store of ", path(), " has format ", format,
        ", but this refurbish_tf reads format ", kFormatVersion,
        ". Nothing was changed. Use the refurbish_tf that wrote it, give another "
        "directory, or start with an empty store with overwrite=True.");
  }
  char* end = nullptr;
  const std::string id = settings[kId];
  settings.erase(kId);
  contents.id = std::strtoull(id.c_str(), &end, 16);
  if (id.empty() || *end != '\0') return DamagedSettings(path());
  return contents;
}

absl::Status SettingsFile::Write(const StoreContents& contents) const {
  std::string text =
      absl::StrCat(kTitle, "\n", kFormat, " ", kFormatVersion, "\n", kId, " ",
                   absl::Hex(contents.id, absl::kZeroPad16), "\n");
  for (const auto& [name, value] : contents.settings) {
    absl::StrAppend(&text, name, " ", Escape(value), "\n");
  }
  absl::StrAppend(&text, kChecksum, " ", Checksum(text), "\n");
  // Does not write into an existing file: it may have another hard link.
  (void)directory_->Delete(kTemporaryName);
  RTF_ASSIGN_OR_RETURN(const std::shared_ptr<File> file,
                       directory_->OpenFile(kTemporaryName, O_CREAT | O_EXCL));
  StoreEnv& env = directory_->env();
  absl::Status status = env.Write(file->fd(), 0, {{text.data(), text.size()}});
  if (status.ok()) status = env.Sync(file->fd());
  if (status.ok()) status = directory_->Rename(kTemporaryName, kName);
  if (status.ok()) return directory_->Sync();
  (void)directory_->Delete(kTemporaryName);
  return absl::Status(status.code(),
                      absl::StrCat(path(), ": ", status.message()));
}

absl::StatusOr<Settings> SettingsFile::Agree(
    const Settings& settings, bool replace, const std::string& lock_name,
    std::chrono::milliseconds patience) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point until = Clock::now() + patience;
  std::shared_ptr<File> lock_file;  // Closing it frees the lock.
  bool locked = false;
  while (true) {
    RTF_ASSIGN_OR_RETURN(StoreContents contents, Read());
    std::string differences;
    bool changed = false;
    for (const auto& [name, value] : settings) {
      const auto [entry, is_new] = contents.settings.emplace(name, value);
      changed |= is_new;
      if (entry->second == value) continue;
      if (replace) {
        entry->second = value;
        changed = true;
      } else {
        absl::StrAppend(&differences, differences.empty() ? "" : "; ", name,
                        " is ", value.empty() ? "none" : value, ", but it was ",
                        entry->second.empty() ? "none" : entry->second);
      }
    }
    if (!differences.empty()) {
      return FailedPrecondition(differences);
    }
    if (changed && locked) {
      RTF_RETURN_IF_ERROR(Write(contents));
    }
    if (!changed || locked) return std::move(contents.settings);
    if (lock_file == nullptr) {
      RTF_ASSIGN_OR_RETURN(lock_file, directory_->OpenFile(lock_name));
    }
    locked = directory_->env().TryLock(lock_file->fd(), /*byte=*/0);
    if (locked) continue;  // Read again: the file may have changed.
    if (errno != EAGAIN && errno != EACCES) {
      return ErrnoError("Cannot lock ", directory_->path(), "/", lock_name);
    }
    if (Clock::now() >= until) {
      return Unavailable(path(),
                         " is locked by another process. If that process is "
                         "suspended, resume or end it.");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool SettingsFile::IsTemporaryName(const std::string& name) {
  return name == kTemporaryName;
}

}  // namespace refurbish_tf
