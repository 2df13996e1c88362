#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "refurbish_tf/cc/store/disk/directory.h"

namespace refurbish_tf {

// A file that all processes map, chunk by chunk as they need it. The others see
// at once what a process sets, and it stays when that process dies.
//
// If somebody truncates the file (`> file`, `cp`, `rsync --inplace`), the
// system would end processes that touch the lost part (SIGBUS). Instead, a
// signal handler maps zeros there for its own process. Later the `Writer` calls
// `Mend`, which makes the file as long as it was, with zeros where it was cut.
// The `Writer` also counts the samples that were lost. Thread-safe.
class MappedFile {
 public:
  // Opens the file, or makes it, with at least one chunk.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(
      const Directory* directory, const std::string& name, uint64_t chunk_bytes,
      uint64_t max_chunks);
  ~MappedFile();

  // The memory of a chunk. Null if the file ends before the chunk does, or if
  // the chunk cannot be mapped.
  char* Find(uint64_t chunk) const {
    char* const found = chunks_[chunk].load(std::memory_order_acquire);
    return found != nullptr ? found : Map(chunk);
  }
  // Whether the file reaches to the end of the chunk.
  bool Exists(uint64_t chunk) const;
  // Extends the file to the end of the chunk. Waits for no other process.
  absl::Status Reserve(uint64_t chunk) ABSL_LOCKS_EXCLUDED(mu_);

  // Whether a mapped chunk was cut. Until `Mend`, only this process sees what
  // it sets there.
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
  // Extends the file to `bytes` and allocates all its blocks, because on a full
  // disk, touching a hole also raises SIGBUS. `whole`: also fills holes before
  // its current end.
  absl::Status Grow(uint64_t bytes, bool whole);
  // Extends the file to the end of the mapped chunks, and maps these again.
  absl::Status MapAgain() ABSL_LOCKS_EXCLUDED(mu_);

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
