"""Pictures of samples, tables in notebooks, and what a bug report says."""
from support.mutants import Mutant

COPIES, PANELS, SCHEDULE, FIGURE = (f"refurbish_tf/drawing/{name}.py" for name in ("copies", "panels", "schedule", "figure"))
SHOW, INFO = "tests/drawing/test_show.py", "tests/cli/test_info.py"
SAMPLES = f"{SHOW}::test_samples_are_those_of_the_first_epochs"

MUTANTS = [
    Mutant("show: a sample that the store has no room for is reused", SCHEDULE, "  if rank >= kept:\n", "  if rank > kept:\n", SAMPLES),
    Mutant("show: a sample is evicted an epoch late", SCHEDULE, "(rank < position)", "(rank + 1 < position)", SAMPLES),
    Mutant("show: counted references are evicted as balanced ones", SCHEDULE, 'if eviction == "reference_count":', "if False:", SAMPLES),
    Mutant("show: in a shard samples have the whole source's places", COPIES, "          index // shards, epoch)", "          index, epoch)", SAMPLES),
    Mutant("show: other samples come first", COPIES, '"order_seed": order_seed,', '"order_seed": seed,', SAMPLES),
    Mutant("show: a stream of unknown length is never reused", SCHEDULE, "2**32 if min(num_samples, num_kept) < 0", "0 if min(num_samples, num_kept) < 0",
           f"{SHOW}::test_a_stream_of_unknown_length_begins_with_its_first_samples"),
    Mutant("show: it runs the stage itself", COPIES, "given = _dataset_of([elements[k % len(elements)] for k in range(number * size)], keeper.element_spec)",
           "given = keeper.take(number * size)", f"{SHOW}::test_the_stage_is_as_before"),
    Mutant("show: variables go on", COPIES, "      each.assign(value)\n", "      pass\n", f"{SHOW}::test_variables_and_random_numbers_are_as_before"),
    Mutant("show: random numbers go on", COPIES, 'if getattr(each, "_rerandomize", False)}', "if False}",
           f"{SHOW}::test_variables_and_random_numbers_are_as_before"),
    Mutant("show: batches are not full", COPIES, "number = -(-len(elements) // size)", "number = len(elements) // size or 1",
           f"{SHOW}::test_what_is_drawn_is_what_is_yielded"),
    Mutant("show: rows are shuffled", COPIES, 'or kind == "_ShuffleDataset" and dataset._reshuffle_each_iteration is not False:', "or False:",
           f"{SHOW}::test_plain_pipelines"),
    Mutant("show: what cache keeps is new in each epoch", COPIES,
           'hasattr(dataset, "refurbish_stage") or type(dataset).__name__ in ("CacheDataset", "_CachedDataset")',
           'hasattr(dataset, "refurbish_stage")', f"{SHOW}::test_plain_pipelines"),
    Mutant("show: a number of samples that changes is not noticed", COPIES, "  if len({*map(len, rows), made.num_yielded} - {None}) > 1:\n", "  if False:\n",
           f"{SHOW}::test_what_changes_the_number_of_samples"),
    Mutant("show: normalisation is not undone", "refurbish_tf/drawing/show.py", "panels.normalization_of(functions[-1])",
           "None", f"{SHOW}::test_normalised_images_are_made_visible"),
    Mutant("show: boxes of which nothing is left are drawn", PANELS, "if (corner[2:] > corner[:2]).all()]", "]", f"{SHOW}::test_targets"),
    Mutant("show: a normalisation is undone that makes no images", PANELS, "(*known, *_USUAL)", "(*known[:1], *_USUAL)", f"{SHOW}::test_normalised_images_are_made_visible"),
    Mutant("show: points that are not seen are drawn", PANELS, " & (points[:, 2:] != 0).all(axis=1)", "", f"{SHOW}::test_targets"),
    Mutant("show: an empty component is taken for the boxes", PANELS, "  return np.array_equal(np.squeeze(value), np.squeeze(before))",
           "  return np.array_equal(value.ravel(), before.ravel())", f"{SHOW}::test_samples_without_boxes"),
    Mutant("show: fresh samples look cached", FIGURE, "linewidth=3, color=FRESH if fresh else CACHED)", "linewidth=3, color=CACHED if fresh else FRESH)",
           f"{SHOW}::test_what_is_drawn_is_what_is_yielded"),
    Mutant("show: each clip shows one frame", PANELS, "min(len(value), most_frames)", "1", f"{SHOW}::test_clips_views_and_files"),
    Mutant("bars leave out what was waited for", "refurbish_tf/stats.py", "for name in waits))] for epoch", "for name in waits[:0]))] for epoch",
           "tests/drawing/test_tables.py::test_counts"),
    Mutant("info: photographs that EXIF turns are not told", "refurbish_tf/cli/info.py", "    if b\"exif\" in file.lower():", "    if False:",
           f"{INFO}::test_a_folder"),
    Mutant("info: an image that cannot be read ends the command", "refurbish_tf/cli/info.py", "  except OSError as error:", "  except ZeroDivisionError as error:",
           f"{INFO}::test_a_folder"),
    Mutant("info: the limit of a container is not told", "refurbish_tf/_internal/machine.py", "return limit if limit < 2**60 else None", "return None",
           f"{INFO}::test_the_machine")]
