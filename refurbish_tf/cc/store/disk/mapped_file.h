#ifndef REFURBISH_TF_CC_STORE_DISK_MAPPED_FILE_H_
#define REFURBISH_TF_CC_STORE_DISK_MAPPED_FILE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"

namespace refurbish_tf {

// A file that all processes map into their memory, chunk by chunk as they come to
// need it: what one of them sets the others see at once, and it stays when one
// dies.
//
// Whoever cuts such a file (`> file`, `cp`, `rsync --inplace`) takes memory away
// that processes have mapped, and the system ends those that touch it (SIGBUS).
// Here zeros take its place, until `Mend` has made the file what it was: as long,
// and full of zeros where it was cut.
//
// Thread-safe.
class MappedFile {
 public:
  // Opens the file, or makes it, with at least one chunk.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(
      const Directory* directory, const std::string& name, uint64_t chunk_bytes,
      uint64_t max_chunks);
  ~MappedFile();

  // A chunk of memory, null beyond the end of the file.
  char* Find(uint64_t chunk) const {
    char* const found = chunks_[chunk].load(std::memory_order_acquire);
    return found != nullptr ? found : Map(chunk);
  }
  // Whether the file reaches to the end of the chunk.
  bool Exists(uint64_t chunk) const;
  // Makes it reach there. Waits for no other process.
  absl::Status Reserve(uint64_t chunk) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether it was cut where it had been mapped. What was set there since, only
  // this process sees, until it is mended.
  bool WasCut() const { return cut_.load(std::memory_order_relaxed); }
  absl::Status Mend() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Mapping;

  MappedFile(std::shared_ptr<File> file, StoreEnv* env, uint64_t chunk_bytes,
             uint64_t max_chunks)
      : file_(std::move(file)),
        env_(env),
        chunk_bytes_(chunk_bytes),
        max_chunks_(max_chunks),
        chunks_(new std::atomic<char*>[max_chunks]()),
        mappings_(new Mapping*[max_chunks]()) {}

  char* Map(uint64_t chunk) const ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the file so long, with all its blocks: touching a hole when the disk is
  // full is like touching what was cut. With `whole` also where it was that long
  // before.
  absl::Status Grow(uint64_t bytes, bool whole);

  static void HandleBusErrors();

  const std::shared_ptr<File> file_;
  StoreEnv* const env_;
  const uint64_t chunk_bytes_;
  const uint64_t max_chunks_;
  const std::unique_ptr<std::atomic<char*>[]> chunks_;
  mutable std::atomic<bool> cut_{false};
  mutable std::mutex mu_;
  const std::unique_ptr<Mapping*[]> mappings_;  // Elements guarded by `mu_`.
};

}  // namespace refurbish_tf

#endif  // REFURBISH_TF_CC_STORE_DISK_MAPPED_FILE_H_
