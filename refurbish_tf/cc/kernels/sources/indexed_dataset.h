// Base classes of datasets that are read by index, and of their readers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "refurbish_tf/cc/kernels/dataset_op.h"
#include "refurbish_tf/cc/kernels/inline_function.h"

namespace refurbish_tf {

// The components of an element. An inlined vector, because it is slow to free
// what another thread has allocated.
using Components = absl::InlinedVector<Tensor, 2>;

// An element that is to be read, or that was read.
struct IndexedElement {
  int64_t index = -1;  // Negative if an error left it unknown.
  // With an index mapper: how often it had been asked when it gave this index.
  int64_t num_requests = 0;
  absl::Status status;
  Components tensors;
};

class IndexedDataset;

// Reads the elements of one iterator, which begins when the reader is made.
class IndexedReader {
 public:
  explicit IndexedReader(const IndexedDataset* dataset);
  virtual ~IndexedReader() = default;
  // Sets the status and the tensors of elements whose index is set. Called by
  // as many threads at once as the source has readers.
  virtual void Read(FunctionContexts* contexts,
                    absl::Span<IndexedElement> elements);
  // The status that the consumer gets at the end of the sequence.
  virtual absl::Status AtEnd(FunctionContexts*) { return absl::OkStatus(); }

 private:
  const IndexedDataset& dataset_;
  const int64_t since_;
};

// Reads `num_parallel_reads`: how many elements are read at once. AUTOTUNE
// becomes a fixed number, whatever the number of CPU cores, because a disk or a
// service answers several requests at once.
absl::Status GetNumReads(OpKernelContext* ctx, int64_t* number);

class IndexedDataset : public NamedDataset {
 public:
  struct Reads {
    int64_t num_elements;
    // How many readers read ahead. 0: the requesting thread reads.
    int64_t num_readers;
    // How many elements one reader may read together.
    int64_t most_at_once = 1;
  };

  // `method`: the Python function that makes the dataset, for errors.
  IndexedDataset(OpKernelContext* ctx, const char* type, const char* method,
                 DataTypeVector dtypes, std::vector<PartialTensorShape> shapes,
                 Reads reads)
      : NamedDataset(ctx, type, std::move(dtypes), std::move(shapes)),
        method_(method),
        reads_(reads) {}

  const char* method() const { return method_; }
  const Reads& reads() const { return reads_; }

  virtual absl::Status MakeReader(
      IteratorContext*, std::unique_ptr<IndexedReader>* reader) const {
    *reader = std::make_unique<IndexedReader>(this);
    return absl::OkStatus();
  }
  // Reads an element. `since` is when its iterator began, by the clock of
  // `OpenFiles`, or 0 without an iterator.
  virtual absl::Status ReadOne(int64_t /*index*/, int64_t /*since*/,
                               Components* /*element*/) const {
    return Unimplemented("It needs an operation's context.");
  }

  int64_t CardinalityInternal(CardinalityOptions) const override {
    return reads_.num_elements;
  }
  absl::Status RandomIndexingCompatible() const override {
    return absl::OkStatus();
  }
  absl::Status MakeSplitProviders(std::vector<std::unique_ptr<SplitProvider>>*
                                      split_providers) const override;
  absl::Status Get(OpKernelContext* ctx, int64_t index,
                   std::vector<Tensor>* element) const override {
    return Get(AnyContext(ctx), index, element);
  }
  absl::Status Get(AnyContext, int64_t index,
                   std::vector<Tensor>* element) const override {
    TF_RETURN_IF_ERROR(CheckRandomAccessCompatible(index));
    Components read;
    TF_RETURN_IF_ERROR(ReadOne(index, /*since=*/0, &read));
    element->assign(read.begin(), read.end());
    return absl::OkStatus();
  }

 protected:
  std::unique_ptr<IteratorBase> MakeIteratorInternal(
      const std::string& prefix) const override;

 private:
  const char* const method_;
  const Reads reads_;
};

}  // namespace refurbish_tf
