"""Limits, a full disk, files that are cut and bad data."""
from support.mutants import Mutant

CLAIMS = "tests/store/test_disk_foreign.py::test_a_sample_that_claims_more_than_it_has_bytes_for_is_absent"
DAMAGE = "tests/cc/test_cc.py::test_cc[address_undefined-disk_damage_test]"
DISK = "tests/cc/test_cc.py::test_cc[address_undefined-disk_store_test]"
FULL = "tests/cc/test_cc.py::test_cc[address_undefined-full_disk_test]"
RECORD = "tests/cc/test_cc.py::test_cc[address_undefined-record_test]"
WRITER = "tests/cc/test_cc.py::test_cc[address_undefined-writer_test]"
POWER = "tests/cc/test_cc.py::test_cc[address_undefined-power_loss_test]"
ROOM = "refurbish_tf/cc/store/memory/memory_room.cc"
SHORT = "tests/store/test_memory_short.py::"
MEMORY = "tests/cc/test_cc.py::test_cc[address_undefined-memory_store_test]"
STORE = "refurbish_tf/cc/store/disk/disk_store.cc"
BUFFER = "refurbish_tf/cc/store/disk/write_buffer.cc"

MUTANTS = [
    Mutant("of many that are looked up none is removed", "refurbish_tf/cc/store/memory/memory_store.h",
           "      if (lookup.last_use) {", "      if (false) {", MEMORY),
    # Limits.
    Mutant("the limit of memory is exceeded by one sample", "refurbish_tf/cc/store/memory/memory_store.h",
           "result = room_.Offer(stats_.bytes + bytes)", "result = room_.Offer(stats_.bytes)",
           "tests/refurbish/test_guarantees.py::test_max_bytes_of_samples_of_different_size"),
    Mutant("a store grows until memory runs out", ROOM, "!is_short_ && memory.free < reserve", "memory.free < 0", MEMORY),
    Mutant("a store grows again at once", ROOM, "std::min(2 * reserve, (memory.limit + reserve) / 2)", "reserve", MEMORY),
    Mutant("nothing is dropped when memory is very short", ROOM, "if (surplus <= 0)", "if (surplus <= held)", MEMORY),
    Mutant("what was dropped comes back at once", ROOM, "  bytes_ = std::min<int64_t>(bytes_, held - surplus);\n", "", MEMORY),
    Mutant("memory that is short makes room by eviction", "refurbish_tf/cc/store/memory/memory_room.h", "return PutResult::kMemoryShort;",
           "return PutResult::kNoRoom;", f"{SHORT}test_the_limit_still_decides_how_many_are_kept"),
    Mutant("hits do not see that memory is very short", "refurbish_tf/cc/store/memory/memory_store.h", "    room_.Count();\n    const bool hit", "    const bool hit",
           f"{SHORT}test_cached_reads_what_it_has_no_room_for"),
    Mutant("an epoch of hits does not look", "refurbish_tf/cc/kernels/refurbish/refurbish_iterator.cc",
           "  epoch_->sample_store().store().LookAtMemory();\n", "", f"{SHORT}test_an_epoch_of_hits_sees_that_memory_is_very_short"),
    Mutant("what memory is short for takes no room", "refurbish_tf/cc/refurbish/fitting_samples.cc",
           " || result == PutResult::kMemoryShort", "", f"{SHORT}test_the_limit_still_decides_how_many_are_kept"),
    Mutant("memory that was short once is warned of", ROOM, "    lost_ = false;\n", "", MEMORY),
    Mutant("control groups around the own one have no limit", "refurbish_tf/cc/base/memory.cc", "group.resize(group.rfind('/'));",
           "group = root;", "tests/cc/test_cc.py::test_cc[address_undefined-memory_test]"),
    Mutant("the limit on disk is not looked at before writing", BUFFER,
           "    if (max_bytes != kUnlimited &&\n", "    if (max_bytes == 0 &&\n", DISK),
    Mutant("an older generation replaces a newer one in memory", "refurbish_tf/cc/store/memory/memory_store.h",
           "      if (entry.generation() > generation) return PutResult::kNewerKept;\n", "", MEMORY),
    Mutant("an older generation replaces a newer one on disk", STORE,
           "    if (stored > generation) return PutResult::kNewerKept;\n", "", DISK),
    Mutant("a sample that was left alone for long seems new", "refurbish_tf/cc/store/disk/records.cc",
           "      if (wanted.Contains(record->header().generation)) {", "      if (wanted.least != 1) {", RECORD),
    Mutant("what was being written is not dropped", BUFFER, "  if (entry.dropped) return {word};\n", "", WRITER),
    Mutant("a put does not wait for a busy disk", BUFFER, "kMostBatches * enough_ &&\n           !closed_) {",
           "kMostBatches && closed_) {",
           WRITER),
    Mutant("a compaction is not cancelled", "refurbish_tf/cc/store/disk/writer.cc", "    return !IsStopping();", "    return true;",
           WRITER),
    # A full disk, and files that are cut.
    Mutant("a full disk loses the whole batch", "refurbish_tf/cc/store/disk/writer.cc",
           "    left->insert(left->end(), entries.begin(), entries.end());\n", "    (void)left;\n", FULL),
    Mutant("an older generation stays on a full disk", "refurbish_tf/cc/store/disk/writer.cc",
           "      records_->Dispose(\n          records_->Remove(entry.index, /*evict=*/true, entry.generation));\n", "",
           FULL),
    Mutant("what was cut is not mapped again", "refurbish_tf/cc/store/disk/mapped_file.cc",
           "    if (data == nullptr) continue;\n    // In one step", "    if (data != nullptr) continue;\n    // In one step",
           "tests/cc/test_cc.py::test_cc[address_undefined-mapped_file_test]"),
    # Bad data.
    Mutant("the checksum of a sample dropped", "refurbish_tf/cc/store/disk/record.cc",
           "header().payload_crc == Crc32c(payload(), payload_size());", "payload() != nullptr;", DAMAGE),
    Mutant("a record of another sample is taken", "refurbish_tf/cc/store/disk/record.cc",
           "header.index == index &&", "(header.index == index || true) &&", DAMAGE),
    Mutant("a damaged sample stays", "refurbish_tf/cc/store/disk/records.cc",
           "  if (!ClearWord(index, word)) return;", "  if (word == 0 || index_->Load(index) != word) return;", DAMAGE),
    Mutant("components that lie as TensorFlow does not want them", "refurbish_tf/cc/store/samples/sample_codec.cc",
           "  return (in_record + kAlignment - 1) / kAlignment * kAlignment -\n         sizeof(RecordHeader);",
           "  return in_record - sizeof(RecordHeader);", "tests/store/test_disk_store.py::test_aligned_as_tensorflow_wants_it"),
    Mutant("the number of components of a sample is believed", "refurbish_tf/cc/store/samples/sample_codec.cc",
           "count > payload_size / sizeof(ComponentHeader)", "count > payload_size", f"{CLAIMS}[components]"),
    Mutant("the number of elements of a sample is believed", "refurbish_tf/cc/store/samples/sample_codec.cc",
           "if (size > static_cast<int64_t>(proto.ByteSizeLong())) return false;", "", f"{CLAIMS}[elements]"),
    Mutant("the number of elements in a variant is believed", "refurbish_tf/cc/store/samples/sample_codec.cc",
           "if (!HoldsItsElements(tensor, depth + 1)) return false;", "(void)tensor;", f"{CLAIMS}[elements of a variant]"),
    Mutant("a store with other settings is taken", "refurbish_tf/cc/store/disk/settings_file.cc",
           "      if (entry->second == value) continue;", "      if (!entry->second.empty()) continue;",
           "tests/store/test_disk_store_bad_input.py::test_other_settings"),
    Mutant("decoders that a store does not name are today's", "refurbish_tf/cache_store.py",
           '"version 1 of rtf.augment.decode" if filled in before else version', "version",
           "tests/store/test_disk_store_bad_input.py::test_samples_of_other_decoders"),
    Mutant("a decoder in the source is not seen", "refurbish_tf/_internal/dataset_graph.py",
           "functions = [*functions, *(function for dataset", "[*functions, *(function for dataset",
           "tests/store/test_disk_store_bad_input.py::test_samples_of_other_decoders"),
    Mutant("a store of an earlier format is read", "refurbish_tf/cc/store/disk/settings_file.cc",
           "format != absl::StrCat(kFormatVersion)", "std::atoi(format.c_str()) > kFormatVersion",
           "tests/store/test_disk_store_bad_input.py::test_store_of_another_format_is_left_untouched[0]"),
    Mutant("settings are not on the disk before they get their name", "refurbish_tf/cc/store/disk/settings_file.cc",
           "  if (status.ok()) status = env.Sync(file->fd());\n", "", POWER),
    Mutant("settings have their name on the disk some time later", "refurbish_tf/cc/store/disk/settings_file.cc",
           "  if (status.ok()) return directory_->Sync();", "  if (status.ok()) return status;", POWER),
    Mutant("samples outlive what says how they were prepared", "refurbish_tf/cc/store/disk/store_files.cc",
           "  RTF_RETURN_IF_ERROR(directory.Sync());\n", "", POWER),
    Mutant("a record of the store that was here before is taken", "refurbish_tf/cc/store/disk/record.cc",
           "header.store_id == store_id && ", "(header.store_id == store_id || true) && ", POWER),
    # What others may have written.
    Mutant("the number of samples of a store is believed", "refurbish_tf/cc/cooperation/shared/shared_cooperation.cc",
           "&origin) || samples < least || samples > most ||", "&origin) ||",
           "tests/store/test_disk_foreign.py::test_settings_are_compared_before_they_are_believed"),
    Mutant("more samples are kept than there are", "refurbish_tf/cc/cooperation/shared/shared_cooperation.cc",
           "kept > samples || origin >= kMaxEpochs", "origin >= kMaxEpochs",
           "tests/store/test_disk_foreign.py::test_settings_are_compared_before_they_are_believed"),
    Mutant("samples of other types come out of a store", "refurbish_tf/cc/store/samples/disk_samples.cc",
           "(types == nullptr || types->Allow(*sample))", "(types == nullptr || !in_transit || types->Allow(*sample))",
           "tests/store/test_disk_foreign.py::test_a_sample_of_another_kind_is_absent"),
    Mutant("samples of other types come out of the ring", "refurbish_tf/cc/store/samples/disk_samples.cc",
           "(types == nullptr || types->Allow(*sample))", "(types == nullptr || in_transit || types->Allow(*sample))",
           "tests/store/test_disk_foreign.py::test_a_sample_of_another_kind_in_transit_is_prepared_again"),
    Mutant("samples of another shape come out of a store", "refurbish_tf/cc/store/samples/sample_store.cc",
           "        !shapes[i].IsCompatibleWith(sample[i].shape())) {", "        shapes[i].unknown_rank()) {",
           "tests/store/test_disk_foreign.py::test_a_sample_of_another_kind_is_absent"),
]
