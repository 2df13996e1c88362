#pragma once

#include <memory>

#include "refurbish_tf/cc/cooperation/cooperation.h"
#include "refurbish_tf/cc/store/disk/disk_store.h"

namespace refurbish_tf {

// How jobs cooperate on a store on disk, through its files: settings, claims,
// state and ring. The store must outlive the result.
std::unique_ptr<Cooperation> MakeSharedCooperation(DiskStore* disk);

}  // namespace refurbish_tf
