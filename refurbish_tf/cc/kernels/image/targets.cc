#include "refurbish_tf/cc/kernels/image/targets.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "refurbish_tf/cc/image/painter.h"
#include "refurbish_tf/cc/image/targets/blended_map.h"
#include "refurbish_tf/cc/image/targets/boxes.h"
#include "refurbish_tf/cc/image/targets/key_points.h"
#include "refurbish_tf/cc/image/targets/mask.h"
#include "refurbish_tf/cc/image/vector_kernels.h"
#include "refurbish_tf/cc/kernels/image/threads.h"
#include "refurbish_tf/cc/kernels/image_layers.h"
#include "refurbish_tf/cc/kernels/value_types.h"

namespace refurbish_tf {
namespace {

using Form = TargetKind::Form;

constexpr absl::string_view kPrefix = "targets: ";

// A target to be moved. `whose`: how error messages about it begin.
struct Moving {
  OpKernelContext* ctx;
  const Tensor& given;
  int output;
  TargetKind kind;
  absl::string_view whose;
  const ImageBatch& images;

  template <class... Parts>
  absl::Status Refused(const Parts&... why) const {
    return InvalidArgument(whose, " must ", why..., ".");
  }
  absl::Status NoMemory() const {
    return ResourceExhausted("Out of memory for ",
                             absl::StripSuffix(whose, ","),
                             ". Pass smaller ones.");
  }
};

std::string TextOf(absl::Span<const int64_t> dims) {
  return absl::StrCat("[", absl::StrJoin(dims, ", "), "]");
}

// Checks that a target begins with the leading dimensions of its images. `*own`
// gets the other dimensions.
absl::Status CheckLead(const Moving& move, std::vector<int64_t>* own) {
  const std::vector<int64_t>& lead = move.images.lead;
  std::vector<int64_t> dims;
  for (int i = 0; i < move.given.dims(); ++i) {
    dims.push_back(move.given.dim_size(i));
  }
  if (dims.size() < lead.size() ||
      !std::equal(lead.begin(), lead.end(), dims.begin())) {
    return move.Refused(
        "begin with the dimensions that its images have before their height, ",
        TextOf(lead), ", got shape ", TextOf(dims),
        ". Give each image of a batch, or each frame of a clip, its own");
  }
  own->assign(dims.begin() + static_cast<int64_t>(lead.size()), dims.end());
  return absl::OkStatus();
}

// Allocates a map, or an image whose sides are `times` the first image's.
absl::Status AllocateMap(const Moving& move, int64_t times, Tensor** output) {
  const ImageSize made = move.images.made;
  TensorShape shape = move.given.shape();
  const int dim = static_cast<int>(move.images.lead.size());
  TF_RETURN_IF_ERROR(shape.SetDimWithStatus(dim, made.height * times));
  TF_RETURN_IF_ERROR(shape.SetDimWithStatus(dim + 1, made.width * times));
  return move.ctx->allocate_output(move.output, shape, output);
}

// Checks a map, and allocates the moved one.
absl::Status MakeMap(const Moving& move, Tensor** output) {
  std::vector<int64_t> own;
  TF_RETURN_IF_ERROR(CheckLead(move, &own));
  const ImageSize size = move.images.size;
  if ((own.size() != 2 && own.size() != 3) || own[0] != size.height ||
      own[1] != size.width) {
    const auto is = [&](size_t place, int64_t height, int64_t width) {
      return own.size() > place + 1 && own[place] == height &&
             own[place + 1] == width;
    };
    const absl::string_view way =
        is(1, size.height, size.width)
            ? "Put the masks last, with tf.transpose(mask, [1, 2, 0])"
        : is(0, size.width, size.height)
            ? "If EXIF turns one of them, pass the other apply_exif_orientation"
            : "Resize one of them in Dataset.map before";
    return move.Refused("have the height and width of its image, ", size,
                        ", got shape ", TextOf(own), ". ", way);
  }
  if (size.height * size.width > MaskPoints::kMost) {
    return move.Refused("have at most ", MaskPoints::kMost, " pixels, got ",
                        size);
  }
  const int64_t channels = own.size() == 3 ? own[2] : 1;
  if (move.kind.form == Form::kFlow && (own.size() != 3 || channels != 2)) {
    return move.Refused(
        "be [height, width, 2], with x and y of each vector, got shape ",
        TextOf(own));
  }
  if (move.kind.form == Form::kVectors &&
      (own.size() != 3 || (channels != 3 && channels % 2 != 0))) {
    return move.Refused(
        "be [height, width, 3], with x, y and z of each vector, or have x and "
        "y of several in [height, width, 2 * n], got shape ",
        TextOf(own));
  }
  if (move.kind.form == Form::kDisparity && channels != 1) {
    return move.Refused("be [height, width] or [height, width, 1], got shape ",
                        TextOf(own));
  }
  return AllocateMap(move, 1, output);
}

// How many bytes of `tensor` belong to one draw.
int64_t BytesOfDraw(const Moving& move, const Tensor& tensor) {
  return static_cast<int64_t>(tensor.TotalBytes()) / move.images.num_draws;
}

// Calls make(draw) for each draw, on several threads if that pays.
template <class Work>
absl::Status ForEachDraw(const Moving& move, const Tensor& output,
                         const Work& make) {
  const bool lacks_memory =
      ForEachPart(move.ctx, move.images.num_draws,
                  BytesOfDraw(move, move.given) + BytesOfDraw(move, output),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t draw = begin; draw < end; ++draw) make(draw);
                  });
  return lacks_memory ? move.NoMemory() : absl::OkStatus();
}

absl::Status MoveMask(const Moving& move) {
  // Masks are moved as bytes, which is possible only for plain numbers.
  if (!tensorflow::DataTypeCanUseMemcpy(move.given.dtype())) {
    return move.Refused("be of numbers");
  }
  Tensor* output;
  TF_RETURN_IF_ERROR(MakeMap(move, &output));
  if (output->NumElements() == 0) return absl::OkStatus();
  const ImageBatch& images = move.images;
  const int64_t from_bytes = BytesOfDraw(move, move.given) / images.frames;
  const int64_t to_bytes = BytesOfDraw(move, *output) / images.frames;
  const int64_t pixel_bytes =
      from_bytes / (images.size.height * images.size.width);
  const auto* const from = static_cast<const uint8_t*>(move.given.data());
  auto* const to = static_cast<uint8_t*>(output->data());
  return ForEachDraw(move, *output, [&](int64_t draw) {
    MaskPoints points(images.size, BestKernels());
    images.apply(draw, &points);
    for (int64_t i = draw * images.frames; i < (draw + 1) * images.frames;
         ++i) {
      points.Move(from + i * from_bytes, pixel_bytes, to + i * to_bytes);
    }
  });
}

// Paints a second image with the draws of the first.
absl::Status MoveImage(const Moving& move) {
  std::vector<int64_t> own;
  TF_RETURN_IF_ERROR(CheckLead(move, &own));
  const ImageBatch& images = move.images;
  const int64_t times = own.empty() ? 0 : own[0] / images.size.height;
  if (own.size() != 3 || times < 1 || own[0] != images.size.height * times ||
      own[1] != images.size.width * times) {
    return move.Refused(
        "be [height, width, channels], with the sides of its image, ",
        images.size, ", or the same multiple of both, got shape ", TextOf(own),
        ". Crop or resize one of them in Dataset.map before");
  }
  const DataType type = move.given.dtype();
  const Pixel pixel = {TypeOf(type), own[2]};
  if (pixel.type == ValueType::kUnknown) {
    return move.Refused("be ", kImageTypes, ", got dtype ",
                        DataTypeString(type));
  }
  const auto refused = [&move](const absl::Status& status) {
    return absl::Status(
        status.code(),
        absl::StrCat(move.whose, " follows as an image: ", status.message()));
  };
  absl::StatusOr<ImageSpec> made = absl::UnknownError("");
  for (int64_t draw = 0; draw == 0 || draw < images.num_draws; ++draw) {
    made = images.chain->BehindFollower(
        {images.size, images.pixel}, pixel, times,
        images.num_draws == 0
            ? nullptr
            : images.draws + draw * images.chain->num_draws());
    if (!made.ok()) return refused(made.status());
  }
  if (TypeOf(made->pixel.type) !=
      move.ctx->expected_output_dtype(move.output)) {
    return move.Refused("have ", NameOf(made->pixel.type),
                        " in `Tmoved`, which the layers return");
  }
  Tensor* output;
  TF_RETURN_IF_ERROR(AllocateMap(move, times, &output));
  if (output->NumElements() == 0) return absl::OkStatus();
  const int64_t from_bytes = BytesOfDraw(move, move.given) / images.frames;
  const int64_t to_bytes = BytesOfDraw(move, *output) / images.frames;
  const auto* const from = static_cast<const uint8_t*>(move.given.data());
  auto* const to = static_cast<uint8_t*>(output->data());
  std::atomic<BeyondLimits> beyond = BeyondLimits();
  TF_RETURN_IF_ERROR(ForEachDraw(move, *output, [&](int64_t draw) {
    Painter painter(*images.chain, {own[0], own[1]}, pixel, BestKernels(),
                    times, move.output);
    for (int64_t i = draw * images.frames; i < (draw + 1) * images.frames;
         ++i) {
      painter.PaintBy([&](Canvas* canvas) { images.apply(draw, canvas); },
                      from + i * from_bytes, to + i * to_bytes);
    }
    if (painter.beyond().any()) beyond = painter.beyond();
  }));
  const absl::Status status = ImageLayers::Check(beyond);
  return status.ok() ? status : refused(status);
}

template <class Number>
absl::Status MoveBlended(const Moving& move) {
  using Value =
      std::conditional_t<std::is_same_v<Number, double>, double, float>;
  Tensor* output;
  TF_RETURN_IF_ERROR(MakeMap(move, &output));
  if (output->NumElements() == 0) return absl::OkStatus();
  const ImageBatch& images = move.images;
  const int64_t count = move.given.NumElements() / images.num_draws;
  const int64_t made_count = output->NumElements() / images.num_draws;
  const int64_t channels =
      count / (images.frames * images.size.height * images.size.width);
  const Number* const from = move.given.flat<Number>().data();
  Number* const to = output->flat<Number>().data();
  std::atomic<Movement> change = Movement::kNone;
  TF_RETURN_IF_ERROR(ForEachDraw(move, *output, [&](int64_t draw) {
    const Number* const of_draw = from + draw * count;
    BlendedMap<Value> map(
        move.kind.form, images.size, channels, images.frames,
        std::vector<Value>(of_draw, of_draw + count), [](Value value) {
          return static_cast<Value>(static_cast<Number>(value));
        });
    images.apply(draw, &map);
    std::transform(map.values().begin(), map.values().end(),
                   to + draw * made_count,
                   [](Value value) { return static_cast<Number>(value); });
    if (map.refused() != Movement::kNone) change = map.refused();
  }));
  if (change == Movement::kNone) return absl::OkStatus();
  return move.Refused("have layers that keep its rows, got one that may ",
                      TextOf(change), ". Leave that layer out");
}

template <class Number>
NumberType TypeOfNumbers() {
  using Limits = Eigen::NumTraits<Number>;
  if constexpr (std::is_integral_v<Number>) {
    // Limits int64 and uint64 to 2^62: doubles cannot hold every larger bound.
    static constexpr double kMost = static_cast<double>(int64_t{1} << 62);
    static const double lowest =
        std::max(-kMost, static_cast<double>(Limits::lowest()));
    static const double highest =
        std::min(kMost, static_cast<double>(Limits::highest()));
    return {[](double number) {
              return std::clamp(std::nearbyint(number), lowest, highest);
            },
            0, highest};
  } else {
    return {[](double number) {
              return static_cast<double>(static_cast<Number>(number));
            },
            // Eigen defines the epsilon of 16-bit types differently.
            std::is_same_v<Number, Eigen::half> ? 0x1p-10
            : std::is_same_v<Number, tensorflow::bfloat16>
                ? 0x1p-7
                : static_cast<double>(Limits::epsilon()),
            static_cast<double>(Limits::highest())};
  }
}

// Moves boxes or key points.
template <class Number>
absl::Status MoveRows(const Moving& move) {
  std::vector<int64_t> own;
  TF_RETURN_IF_ERROR(CheckLead(move, &own));
  const TargetKind kind = move.kind;
  // If there are no rows, their length may be unknown.
  const bool fits_last =
      !own.empty() && (move.given.NumElements() == 0 ||
                       own.back() == (kind.is_boxes() ? 4 : 2) ||
                       (!kind.is_boxes() && own.back() == 3));
  if (!fits_last || static_cast<int>(own.size()) > kind.most_dims()) {
    return move.Refused("be ", kind.is_boxes() ? "[n, 4]" : "[n, 2] or [n, 3]",
                        ", got shape ", TextOf(own),
                        ". Give it one row for each box or point");
  }
  Tensor* output;
  TF_RETURN_IF_ERROR(
      move.ctx->allocate_output(move.output, move.given.shape(), &output));
  if (output->NumElements() == 0) return absl::OkStatus();
  const ImageBatch& images = move.images;
  const int64_t count = output->NumElements() / images.num_draws;
  const int columns = static_cast<int>(own.back());
  const NumberType type = TypeOfNumbers<Number>();
  const Number* from = move.given.flat<Number>().data();
  Number* to = output->flat<Number>().data();
  absl::InlinedVector<double, 64> numbers(count);
  const int64_t rows = count / columns / std::max<int64_t>(1, images.frames);
  for (int64_t draw = 0; draw < images.num_draws; ++draw) {
    const auto in_row = [&](int64_t row) {
      return absl::StrCat(" in row ", row % rows,
                          images.lead.empty() ? ""
                          : images.frames > 1
                              ? absl::StrCat(" of frame ", row / rows)
                              : absl::StrCat(" of image ", draw));
    };
    std::transform(from, from + count, numbers.begin(),
                   [](Number number) { return static_cast<double>(number); });
    const auto move_all = [&](TargetRows&& moved,
                              absl::string_view advice) -> absl::Status {
      if (absl::Status status = moved.Begin(); !status.ok()) {
        return move.Refused(status.message(), in_row(moved.refused()), advice);
      }
      images.apply(draw, &moved);
      // Key points may be outside the image, even far away.
      if (!kind.is_boxes() || moved.fits()) return absl::OkStatus();
      return move.Refused(
          "have a dtype that holds the sides of its image, got ",
          DataTypeString(move.given.dtype()),
          ". Use tf.cast(boxes, tf.int32) in Dataset.map before");
    };
    TF_RETURN_IF_ERROR(
        kind.is_boxes()
            ? move_all(
                  Boxes(kind, type, images.size, count / columns,
                        numbers.data()),
                  ". Check their format in `targets`. In Dataset.map before, "
                  "clip boxes that reach beyond the image and leave out "
                  "invalid ones; -1 in all four numbers stands for no box")
            : move_all(KeyPoints(kind.is_relative, type, images.size,
                                 count / columns, columns, numbers.data()),
                       ". For a missing point, write -1 into all numbers of "
                       "its row, or 0 for its visibility"));
    std::transform(numbers.begin(), numbers.end(), to,
                   [](double number) { return static_cast<Number>(number); });
    from += count;
    to += count;
  }
  return absl::OkStatus();
}

// Returns a component without a kind as it is. It must not look like a map.
absl::Status Pass(const Moving& move) {
  std::vector<int64_t> own;
  const bool may_be_map = CheckLead(move, &own).ok() && own.size() >= 2;
  if (may_be_map && own[0] == move.images.size.height &&
      own[1] == move.images.size.width) {
    return InvalidArgument(
        "T", move.whose.substr(kPrefix.size() + 1), " of shape ",
        move.given.shape().DebugString(),
        " has the height and width of the image, but `targets` does not name "
        "it. Declare it there as a \"mask\" of classes, an \"image\" that "
        "moves with the first one, or None if it must not change.");
  }
  move.ctx->set_output(move.output, move.given);
  return absl::OkStatus();
}

// If `type` is one of `Numbers`, calls `work` with a value of that type.
// Returns whether it is.
template <class... Numbers, class Work>
bool ForTypeIn(DataType type, const Work& work) {
  return ((type == tensorflow::DataTypeToEnum<Numbers>::value &&
           (work(Numbers()), true)) ||
          ...);
}

template <class Work>
bool ForFloat(DataType type, const Work& work) {
  return ForTypeIn<Eigen::half, tensorflow::bfloat16, float, double>(type,
                                                                     work);
}

absl::Status MoveOne(const Moving& move) {
  if (move.kind.form == Form::kUnnamed) return Pass(move);
  if (move.kind.form == Form::kMask) return MoveMask(move);
  if (move.kind.form == Form::kImage) return MoveImage(move);
  const DataType type = move.given.dtype();
  absl::Status status;
  bool is_known;
  if (move.kind.is_map()) {
    is_known = ForFloat(type, [&](auto number) {
      status = MoveBlended<decltype(number)>(move);
    });
  } else {
    const auto move_rows = [&](auto number) {
      status = MoveRows<decltype(number)>(move);
    };
    is_known =
        ForFloat(type, move_rows) ||
        ForTypeIn<int32_t, int64_t>(type, move_rows) ||
        // Key points need large signed types: they may be far from the image.
        (move.kind.is_boxes() &&
         ForTypeIn<int8_t, int16_t, uint8_t, uint16_t, uint32_t, uint64_t>(
             type, move_rows));
  }
  if (is_known) return status;
  return move.Refused("have another dtype than ", DataTypeString(type));
}

}  // namespace

absl::Status Targets::Parse(OpKernelConstruction* ctx) {
  std::vector<std::string> kinds;
  TF_RETURN_IF_ERROR(ctx->GetAttr("kinds", &kinds));
  TF_RETURN_IF_ERROR(ctx->GetAttr("names", &names_));
  std::vector<DataType> types;
  TF_RETURN_IF_ERROR(ctx->GetAttr("Ttargets", &types));
  if (kinds.size() != types.size() || names_.size() != types.size()) {
    return InvalidArgument("`kinds` and `names` must describe the ",
                           types.size(), " targets, got ", kinds.size(),
                           " and ", names_.size(), ".");
  }
  for (std::string& name : names_) name.insert(0, kPrefix);
  for (const std::string& kind : kinds) {
    TF_ASSIGN_OR_RETURN(const TargetKind parsed, TargetKind::Named(kind));
    kinds_.push_back(parsed);
  }
  if (!ctx->HasAttr("Tmoved")) return absl::OkStatus();
  std::vector<DataType> moved;
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tmoved", &moved));
  bool fits = moved.size() == types.size();
  for (size_t i = 0; fits && i < types.size(); ++i) {
    // `MoveImage` checks the type of an image.
    fits = kinds_[i].form == Form::kImage || moved[i] == types[i];
  }
  if (fits) return absl::OkStatus();
  return InvalidArgument(
      "`Tmoved` must be the types that targets have after the layers.");
}

absl::Status Targets::Move(OpKernelContext* ctx, int input, int output,
                           const ImageBatch& images, bool only_looks) const {
  try {
    for (size_t i = 0; i < kinds_.size(); ++i) {
      const int number = static_cast<int>(i);
      // An earlier call with `only_looks` has already moved this one.
      const bool is_done = ctx->mutable_output(output + number) != nullptr;
      if (is_done || (only_looks && !kinds_[i].is_boxes())) continue;
      const Moving move{ctx,
                        ctx->input(input + number),
                        output + number,
                        kinds_[i],
                        names_[i],
                        images};
      absl::Status status = MoveOne(move);
      if (!status.ok() || only_looks) return status;
    }
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("Out of memory for the targets of an image.");
  }
  if (!only_looks) return absl::OkStatus();
  return InvalidArgument(
      "`targets` must have boxes, because the layers need them, got none.");
}

}  // namespace refurbish_tf
