// How jobs cooperate on a store on disk, through its files: settings, claims,
// state and ring.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "refurbish_tf/cc/base/status_macros.h"
#include "refurbish_tf/cc/cooperation/cooperation.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {

class SharedCooperation : public Cooperation {
 public:
  // The store must outlive it.
  explicit SharedCooperation(DiskStore* disk) : disk_(*disk) {}

  std::shared_ptr<const Schedule> Agreed(const Terms& terms) override;
  absl::StatusOr<std::shared_ptr<const Schedule>> Agree(
      const Terms& terms, std::shared_ptr<const Schedule> schedule,
      std::chrono::milliseconds patience) override;
  absl::Status AgreeAnew(const Terms& terms, const Schedule& schedule) override;
  absl::Status AgreeOnElements(int64_t num_elements,
                               const std::string& shard) override;
  absl::StatusOr<Settings> AgreeOn(const Settings& settings,
                                   bool replace) override {
    RTF_RETURN_IF_ERROR(disk_.CheckDirectory());
    RTF_RETURN_IF_ERROR(AgreeAsStage(settings, replace));
    return disk_.settings();
  }
  absl::StatusOr<std::vector<NamedNumbers>> LivingJobs() override {
    return disk_.state().LivingJobs();
  }
  absl::StatusOr<std::shared_ptr<Job>> Join(double reuse_factor) override;
  void MakeRoomFor(uint64_t num_elements) override {
    disk_.MakeRoomFor(num_elements);
  }
  absl::Status PlanTransit(int64_t bytes, int64_t sample_bytes) override {
    return disk_.PlanTransit(bytes, sample_bytes);
  }
  int64_t num_in_transit() override {
    const TransitRing* const ring = disk_.transit();
    return ring == nullptr ? 0 : ring->num_units();
  }
  Place place() override;

 private:
  // Like `DiskStore::Agree`, with an error message for users of a stage.
  absl::Status AgreeAsStage(const Settings& settings, bool replace = false,
                            std::chrono::milliseconds patience = kPatience);
  // The error that the store cannot be used: its name, followed by `why`.
  template <class... Parts>
  absl::Status Unfit(const Parts&... why) const {
    return FailedPrecondition("The cache store ", disk_.directory(), " ",
                              why...);
  }
  absl::Status HoldsOther(const char* held, const char* wanted) const;

  DiskStore& disk_;
};

}  // namespace refurbish_tf
