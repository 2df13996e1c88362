#include "refurbish_tf/cc/kernels/stages_upstream.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "refurbish_tf/cc/refurbish/stage.h"

namespace refurbish_tf {
namespace {

// These read an element again, and also save how far they are in it.
bool ReadsAgain(const std::string& type) {
  return absl::StartsWith(type, "Unbatch") ||
         absl::StartsWith(type, "FlatMap") ||
         absl::StrContains(type, "Interleave");
}

struct FoundStages {
  std::vector<std::shared_ptr<Stage>> stages;
  std::vector<std::string> read_again;
  // A dataset may be read by several others, some of which read again.
  std::set<std::pair<const DatasetBase*, bool>> visited;
};

void AddStages(const DatasetBase& dataset, std::string read_again,
               FoundStages* found) {
  std::vector<const DatasetBase*> inputs;
  if (!found->visited.emplace(&dataset, !read_again.empty()).second ||
      !dataset.InputDatasets(&inputs).ok()) {
    return;
  }
  const bool reads_again = ReadsAgain(dataset.type_string());
  for (const DatasetBase* input : inputs) {
    AddStages(*input, reads_again ? dataset.type_string() : read_again, found);
  }
  const auto* own = dynamic_cast<const StageDataset*>(&dataset);
  if (own == nullptr) return;
  const auto at =
      std::find(found->stages.begin(), found->stages.end(), own->stage());
  if (at == found->stages.end()) {
    found->stages.push_back(own->stage());
    found->read_again.push_back(std::move(read_again));
  } else if (!read_again.empty()) {
    found->read_again[at - found->stages.begin()] = std::move(read_again);
  }
}

}  // namespace

std::vector<std::shared_ptr<Stage>> StagesUpstream(
    const DatasetBase& dataset, std::vector<std::string>* read_again) {
  FoundStages found;
  AddStages(dataset, /*read_again=*/"", &found);
  if (read_again != nullptr) *read_again = std::move(found.read_again);
  return std::move(found.stages);
}

absl::Status SaveNextEpoch(IteratorStateWriter* writer, const Stage& stage) {
  return writer->WriteScalar(kNextEpochs, stage.id(),
                             static_cast<int64_t>(stage.next_epoch()));
}

}  // namespace refurbish_tf
