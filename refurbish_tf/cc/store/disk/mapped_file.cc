#include "refurbish_tf/cc/store/disk/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "refurbish_tf/cc/base/status_macros.h"

namespace refurbish_tf {

// A mapped chunk, in a list for the signal handler. The handler may run at any
// time in any thread, so entries are never removed, only reused.
struct MappedFile::Mapping {
  static constexpr uintptr_t kFree = 0;
  static constexpr uintptr_t kTaken = 1;

  std::atomic<uintptr_t> begin{kTaken};
  std::atomic<size_t> size{0};
  std::atomic<std::atomic<bool>*> cut{nullptr};
  Mapping* next = nullptr;

  static std::atomic<Mapping*> first;

  static Mapping* Acquire() {
    for (Mapping* mapping = first; mapping != nullptr;
         mapping = mapping->next) {
      uintptr_t begin = kFree;
      if (mapping->begin.compare_exchange_strong(begin, kTaken)) return mapping;
    }
    auto* const mapping = new Mapping;  // Never deleted.
    mapping->next = first;
    while (!first.compare_exchange_weak(mapping->next, mapping)) {
    }
    return mapping;
  }
};

std::atomic<MappedFile::Mapping*> MappedFile::Mapping::first{nullptr};

// Installs the handler when the first file is mapped. Faults outside our
// mappings go to the handler that was there before.
void MappedFile::HandleBusErrors() {
  static struct sigaction before;
  static const uintptr_t page = sysconf(_SC_PAGESIZE);
  struct sigaction action{};
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  action.sa_sigaction = [](int signal, siginfo_t* info, void* context) {
    const int error = errno;
    const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
    for (const Mapping* mapping = Mapping::first; mapping != nullptr;
         mapping = mapping->next) {
      const uintptr_t begin = mapping->begin.load(std::memory_order_acquire);
      if (begin <= Mapping::kTaken || address - begin >= mapping->size)
        continue;
      if (syscall(SYS_mmap, address / page * page, page, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == -1) {
        break;
      }
      // An exchange, to synchronize with `Mend`.
      mapping->cut.load()->exchange(true);
      errno = error;
      return;
    }
    errno = error;
    // Python's faulthandler, if it was enabled later, is called first. It
    // restores this handler and raises the signal again, which arrives here.
    // After the return, the address is touched again, which calls this handler.
    if (info->si_code == SI_TKILL && info->si_pid == getpid()) return;
    if ((before.sa_flags & SA_SIGINFO) != 0) {
      before.sa_sigaction(signal, info, context);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
      before.sa_handler(signal);
    } else {
      // Touching the address again, or raising the signal, ends the process, as
      // it would have without this handler.
      struct sigaction none{};
      none.sa_handler = SIG_DFL;
      sigaction(signal, &none, nullptr);
      if (info->si_code <= 0) raise(signal);
    }
  };
  static const bool installed = sigaction(SIGBUS, &action, &before) == 0;
  (void)installed;
}

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(
    const Directory* directory, const std::string& name, uint64_t chunk_bytes,
    uint64_t max_chunks) {
  RTF_ASSIGN_OR_RETURN(std::shared_ptr<File> file,
                       directory->OpenFile(name, O_CREAT | O_APPEND));
  HandleBusErrors();
  std::unique_ptr<MappedFile> mapped(new MappedFile(
      std::move(file), &directory->env(), chunk_bytes, max_chunks));
  // Makes and maps the first chunk, so that this fails now if the file system
  // cannot map files. Also fills holes, which some tools leave in a copy.
  struct stat status;
  absl::Status grown = fstat(mapped->file_->fd(), &status) == 0
                           ? absl::OkStatus()
                           : ErrnoError("Cannot stat ", name);
  if (grown.ok()) {
    // If the file is longer than `max_chunks`, the rest stays as it is.
    const uint64_t size =
        std::min<uint64_t>(status.st_size, max_chunks * chunk_bytes);
    grown = mapped->Grow((size + chunk_bytes - 1) / chunk_bytes * chunk_bytes,
                         uint64_t{512} * status.st_blocks < size);
  }
  if (grown.ok()) grown = mapped->Reserve(0);
  if (grown.ok()) return mapped;
  return absl::Status(
      grown.code(),
      absl::StrCat("Cannot map ", directory->path(), "/", name, ": ",
                   grown.message(),
                   absl::IsResourceExhausted(grown) || absl::IsOutOfRange(grown)
                       ? ""
                       : ". A cache store on disk needs mapped files, which "
                         "network file systems often lack. Choose a directory "
                         "on a local disk"));
}

MappedFile::~MappedFile() {
  for (uint64_t chunk = 0; chunk < max_chunks_; ++chunk) {
    char* const data = chunks_[chunk].load(std::memory_order_relaxed);
    if (data == nullptr) continue;
    mappings_[chunk]->begin = Mapping::kFree;
    munmap(data, chunk_bytes_);
  }
}

bool MappedFile::Exists(uint64_t chunk) const {
  struct stat status;
  return fstat(file_->fd(), &status) == 0 &&
         static_cast<uint64_t>(status.st_size) >= (chunk + 1) * chunk_bytes_;
}

char* MappedFile::Map(uint64_t chunk) const {
  if (!Exists(chunk)) return nullptr;
  std::lock_guard<std::mutex> lock(mu_);
  char* data = chunks_[chunk].load(std::memory_order_acquire);
  if (data != nullptr) return data;
  void* const address = mmap(nullptr, chunk_bytes_, PROT_READ | PROT_WRITE,
                             MAP_SHARED, file_->fd(), chunk * chunk_bytes_);
  if (address == MAP_FAILED) return nullptr;
  Mapping* const mapping = Mapping::Acquire();
  mapping->size = chunk_bytes_;
  mapping->cut = &cut_;
  mapping->begin = reinterpret_cast<uintptr_t>(address);
  mappings_[chunk] = mapping;
  data = static_cast<char*>(address);
  chunks_[chunk].store(data, std::memory_order_release);
  return data;
}

absl::Status MappedFile::Reserve(uint64_t chunk) {
  if (Find(chunk) != nullptr) return absl::OkStatus();
  absl::Status grown = Grow((chunk + 1) * chunk_bytes_, /*whole=*/false);
  if (!grown.ok() || Find(chunk) != nullptr) return grown;
  return ErrnoError("Cannot map a file");
}

absl::Status MappedFile::Grow(uint64_t bytes, bool whole) {
  // Several processes may extend the file at once. That overwrites nothing.
  struct stat status;
  if (fstat(file_->fd(), &status) != 0) {
    return ErrnoError("Cannot stat a file");
  }
  const uint64_t from = whole ? 0 : status.st_size;
  if (from >= bytes) return absl::OkStatus();
  return env_->Allocate(file_->fd(), from, bytes - from);
}

absl::Status MappedFile::Mend() {
  // Cleared first, because the file may be cut again. An exchange, not a store,
  // so that all chunks that were mapped before the fault are seen below, also
  // on aarch64: the exchange reads what the handler has set.
  cut_.exchange(false);
  absl::Status mended = MapAgain();
  // An exchange: a store would break the synchronization with the handler.
  if (!mended.ok()) cut_.exchange(true);
  return mended;
}

absl::Status MappedFile::MapAgain() {
  uint64_t end = 0;
  for (uint64_t chunk = 0; chunk < max_chunks_; ++chunk) {
    if (chunks_[chunk].load(std::memory_order_relaxed) != nullptr)
      end = chunk + 1;
  }
  RTF_RETURN_IF_ERROR(Grow(end * chunk_bytes_, /*whole=*/true));
  std::lock_guard<std::mutex> lock(mu_);
  for (uint64_t chunk = 0; chunk < end; ++chunk) {
    char* const data = chunks_[chunk].load(std::memory_order_relaxed);
    if (data == nullptr) continue;
    // MAP_FIXED replaces the memory in one step, because other threads use it.
    // (The thread sanitizer would report the C library's `mmap` as a write.)
    if (syscall(SYS_mmap, data, chunk_bytes_, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_FIXED, file_->fd(),
                chunk * chunk_bytes_) == -1) {
      return ErrnoError("Cannot map a file");
    }
  }
  return absl::OkStatus();
}

}  // namespace refurbish_tf
