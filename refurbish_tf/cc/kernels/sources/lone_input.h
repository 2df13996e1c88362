// Elements of a source by index, each read when it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "refurbish_tf/cc/kernels/names.h"

namespace refurbish_tf {

// An input of its own, whose functions run in the thread that reads it. What
// reads ahead in the source waits, in its index mapper, until the next element
// is asked for. For one thread at a time.
class LoneInput {
 public:
  LoneInput(const DatasetBase* source, std::string prefix)
      : source_(source), prefix_(std::move(prefix)) {}
  ~LoneInput() { Drop(); }
  LoneInput(const LoneInput&) = delete;
  LoneInput& operator=(const LoneInput&) = delete;

  // `ctx` has no index mapper, and is the same each time. `*end`: the source
  // has no such element.
  absl::Status Read(IteratorContext* ctx, uint32_t index,
                    std::vector<Tensor>* element, bool* end);

 private:
  class Asked;

  // Also after an error: the input may have read a part of an element.
  void Drop();

  const DatasetBase* const source_;
  const std::string prefix_;
  std::shared_ptr<Asked> asked_;
  std::optional<IteratorContext> mapped_;
  std::unique_ptr<IteratorBase> input_;
};

}  // namespace refurbish_tf
