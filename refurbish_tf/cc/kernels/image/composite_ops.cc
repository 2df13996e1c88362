// The ops of mosaics and copy-paste: draws, and what they do to maps and rows.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "refurbish_tf/cc/image/composites.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/targets/boxes.h"
#include "refurbish_tf/cc/image/targets/key_points.h"
#include "refurbish_tf/cc/kernels/image/threads.h"
#include "refurbish_tf/cc/kernels/image_attributes.h"

namespace refurbish_tf {
namespace {

constexpr int kNumbers = sizeof(Piece) / sizeof(int32_t);
// Allows for the rounding of float32, in pixels and in fractions.
constexpr double kPixelRounding = 1e-3, kPartRounding = 1e-6;
// Rows are computed in double, and then stored in the dtype that they had.
constexpr NumberType kDoubles = {[](double number) { return number; }, 0x1p-23,
                                 1e300};

template <class Number>
const Number* DataOf(const Tensor& tensor) {
  return static_cast<const Number*>(tensor.data());
}

// A call of an op on a batch of images, whose results may have another size.
struct Call {
  const Tensor& input(int i) const { return ctx->input(i); }
  template <class Number>
  absl::Status Allocate(int i, std::vector<int64_t> dims, Number** to) const {
    TensorShape shape;
    TF_RETURN_IF_ERROR(TensorShape::BuildTensorShape(dims, &shape));
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(i, shape, &output));
    *to = static_cast<Number*>(output->data());
    return absl::OkStatus();
  }
  template <class Work>
  void ForEachImage(int64_t bytes, const Work& work) const {
    const bool lacks_memory =
        ForEachPart(ctx, batch, bytes, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) work(b);
        });
    if (lacks_memory) throw std::bad_alloc();
  }
  // Whether a part of something remains if this fraction of it is visible.
  bool IsEnough(double visible) const {
    return visible > 0 && visible + kPartRounding >= min_visibility;
  }
  // Checks that an input has this shape; -1 allows any number.
  absl::Status Fits(const Tensor& tensor,
                    const std::vector<int64_t>& shape) const {
    if (tensorflow::PartialTensorShape(shape).IsCompatibleWith(
            tensor.shape())) {
      return absl::OkStatus();
    }
    return InvalidArgument(called, " must be of shape [",
                           absl::StrJoin(shape, ", "),
                           "] to fit these images and their boxes, where -1 is "
                           "any number, got ",
                           tensor.shape().DebugString(), ".");
  }
  // The probabilities of the images, from input 2.
  absl::StatusOr<const float*> Probabilities() const {
    const bool fits = Fits(input(2), {batch}).ok();
    const auto* const p = DataOf<float>(input(2));
    const auto is_one = [](float p) { return p >= 0 && p <= 1; };
    if (fits && std::all_of(p, p + batch, is_one)) return p;
    return InvalidArgument("p of ", called.substr(called.rfind(' ') + 1),
                           " must be from 0 to 1, for each image or all, got ",
                           input(2).SummarizeValue(4), ".");
  }
  // The pieces, from input 3.
  absl::StatusOr<const Piece*> Pieces() const {
    TF_RETURN_IF_ERROR(Fits(input(3), {batch, -1, kNumbers}));
    const auto are_in = [](int64_t begin, int64_t side, int64_t whole) {
      return begin >= 0 && side >= 0 && begin + side <= whole;
    };
    const auto* const pieces = DataOf<Piece>(input(3));
    for (int64_t i = 0; i < batch * input(3).dim_size(1); ++i) {
      const Piece& it = pieces[i];
      if (!are_in(it.source, 1, batch) ||
          !are_in(it.y, it.height, size.height) ||
          !are_in(it.x, it.width, size.width) ||
          !are_in(it.made_y, it.height, made.height) ||
          !are_in(it.made_x, it.width, made.width)) {
        return InvalidArgument("`pieces` must be within the images.");
      }
    }
    return pieces;
  }

  OpKernelContext* ctx;
  // What errors call the thing that the op works on.
  const std::string& called;
  float min_visibility;
  int64_t batch;
  // The sizes of the images and of the results.
  ImageSize size, made;
};

template <absl::Status (*kMake)(const Call&)>
class CompositeOp : public OpKernel {
 public:
  explicit CompositeOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("height", &size_.height));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("width", &size_.width));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("min_visibility", &min_visibility_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("called", &called_));
    const int64_t most = ResizingLayer::kMaxSide;
    OP_REQUIRES(ctx, size_.height <= most && size_.width <= most,
                InvalidArgument("The size must be at most ", most, ", got ",
                                size_, "."));
  }
  void Compute(OpKernelContext* ctx) final {
    const Tensor& images = ctx->input(0);
    Call call{ctx, called_, min_visibility_, 0, {}, size_};
    OP_REQUIRES_OK(ctx, call.Fits(images, {-1, -1, -1, -1}));
    call.batch = images.dim_size(0);
    call.size = {images.dim_size(1), images.dim_size(2)};
    if (size_.height == 0 || size_.width == 0) call.made = call.size;
    try {
      OP_REQUIRES_OK(ctx, kMake(call));
    } catch (const std::bad_alloc&) {
      ctx->SetStatus(ResourceExhausted("Out of memory for ", called_, "."));
    }
  }

 private:
  ImageSize size_;
  float min_visibility_;
  std::string called_;
};

absl::Status MakeMosaicPieces(const Call& call) {
  TF_ASSIGN_OR_RETURN(const ImageSeed seed, ParseSeed(call.input(1)));
  TF_ASSIGN_OR_RETURN(const float* const p, call.Probabilities());
  Piece* pieces;
  TF_RETURN_IF_ERROR(
      call.Allocate(0, {call.batch, kMosaicPieces, kNumbers}, &pieces));
  const Shifts shifts = DrawShifts(seed, call.batch, kMosaicPieces - 1);
  for (int64_t b = 0; b < call.batch; ++b) {
    DrawMosaic(seed, b, call.batch, shifts, p[b], call.size, call.made,
               pieces + b * kMosaicPieces);
  }
  return absl::OkStatus();
}

absl::Status PasteObjects(const Call& call) {
  const int64_t batch = call.batch, height = call.size.height,
                width = call.size.width, pixels = height * width;
  TF_RETURN_IF_ERROR(call.Fits(call.input(3), {batch, height, width, 1}));
  TF_RETURN_IF_ERROR(call.Fits(call.input(4), {batch, -1}));
  TF_ASSIGN_OR_RETURN(const ImageSeed seed, ParseSeed(call.input(1)));
  TF_ASSIGN_OR_RETURN(const float* const p, call.Probabilities());
  const int64_t rows = call.input(4).dim_size(1);
  Piece* pieces;
  bool *all_pasted, *stays;
  double* visible;
  TF_RETURN_IF_ERROR(
      call.Allocate(0, {batch, kPastePieces, kNumbers}, &pieces));
  TF_RETURN_IF_ERROR(call.Allocate(1, {batch, height, width}, &all_pasted));
  TF_RETURN_IF_ERROR(call.Allocate(2, {batch, kPastePieces, rows}, &stays));
  TF_RETURN_IF_ERROR(call.Allocate(3, {batch, rows, 4}, &visible));
  const int64_t shift = DrawShifts(seed, batch, 1)[0];
  const auto of = [](int64_t number) { return static_cast<int32_t>(number); };
  call.ForEachImage(10 * pixels, [&](int64_t b) {
    bool* const pasted = all_pasted + b * pixels;
    std::fill_n(pasted, pixels, false);
    // Pasted objects come first. An image that is alone in its batch has none.
    for (int64_t k = kPastePieces - 1; k >= 0; --k) {
      const int64_t source = k == 0 ? b : (b + shift) % batch;
      const int64_t piece = b * kPastePieces + k;
      pieces[piece] = {of(source), 0, 0, of(height), of(width)};
      const std::vector<Object> objects = DrawPasted(
          seed, b, shift == 0 ? 0 : p[b], call.size,
          DataOf<int32_t>(call.input(3)) + source * pixels,
          DataOf<int32_t>(call.input(4)) + source * rows, rows, k == 0, pasted);
      for (int64_t row = 0; row < rows; ++row) {
        const auto& [all, left, box] = objects[row];
        const double visible_part =
            static_cast<double>(left) / static_cast<double>(all);
        stays[piece * rows + row] =
            all == 0 ? k == 0 : call.IsEnough(visible_part);
        // The objects of the image itself are the last ones written.
        const double edges[] = {left < all ? box.left : -1, box.top, box.right,
                                box.bottom};
        std::copy_n(edges, 4, visible + (b * rows + row) * 4);
      }
    }
  });
  return absl::OkStatus();
}

absl::Status MovePieceRows(const Call& call) {
  std::string named;
  TF_RETURN_IF_ERROR(
      tensorflow::GetNodeAttr(call.ctx->op_kernel().def(), "kind", &named));
  TF_ASSIGN_OR_RETURN(const TargetKind kind, TargetKind::Named(named));
  const Tensor &given = call.input(1), &cut = call.input(2);
  const bool has_three = given.dims() == 3 && given.dim_size(2) == 3;
  const int columns = kind.is_boxes() ? 4 : has_three ? 3 : 2;
  TF_RETURN_IF_ERROR(call.Fits(given, {call.batch, -1, columns}));
  TF_ASSIGN_OR_RETURN(const Piece* const pieces, call.Pieces());
  const int64_t rows = given.dim_size(1), number = call.input(3).dim_size(1);
  const bool has_cut = cut.NumElements() > 0;
  if (has_cut) TF_RETURN_IF_ERROR(call.Fits(cut, {call.batch, rows, 4}));
  double* to;
  bool* stays;
  TF_RETURN_IF_ERROR(
      call.Allocate(0, {call.batch, number, rows, columns}, &to));
  TF_RETURN_IF_ERROR(call.Allocate(1, {call.batch, number, rows}, &stays));
  for (int64_t i = 0; i < call.batch * number; ++i) {
    const Piece& it = pieces[i];
    std::copy_n(DataOf<double>(given) + it.source * rows * columns,
                rows * columns, to);
    const auto begin = [&](TargetRows* moved) {
      const absl::Status status = moved->Begin();
      if (status.ok()) return status;
      return InvalidArgument(call.called, " must ", status.message(),
                             " in row ", moved->refused(), " of image ",
                             it.source, ".");
    };
    // `judge` is called for each row when it is cut to the piece, in which
    // the upper left corner is (0, 0).
    const auto move = [&](TargetRows* moved, const auto& judge) {
      moved->Crop({it.y, it.x, it.height, it.width}, Border::kEmpty, kBlack);
      for (int64_t row = 0; row < rows; ++row) *stays++ = judge(row);
      moved->Crop({-it.made_y, -it.made_x, call.made.height, call.made.width},
                  Border::kEmpty, kBlack);
    };
    if (kind.is_boxes()) {
      Boxes boxes(kind, kDoubles, call.size, rows, to);
      TF_RETURN_IF_ERROR(begin(&boxes));
      std::vector<double> areas;
      for (int64_t row = 0; row < rows; ++row) {
        const Edges all = boxes.edges(row);
        areas.push_back(all.HasArea() ? all.Area() : 0);
      }
      move(&boxes, [&](int64_t row) {
        const Edges left = boxes.edges(row);
        const double visible = left.HasArea() ? left.Area() / areas[row] : 0;
        const double side = 1 - kPixelRounding;
        return visible > 1 - kPartRounding ||
               (call.IsEnough(visible) && left.bottom - left.top >= side &&
                left.right - left.left >= side);
      });
      // The first piece has the boxes of the image itself.
      for (int64_t row = 0; has_cut && i % number == 0 && row < rows; ++row) {
        const double* const left =
            DataOf<double>(cut) + (i / number * rows + row) * 4;
        if (left[0] < 0 || areas[row] == 0) continue;
        boxes.Set(row, {left[1], left[0], left[3], left[2]});
        stays[row - rows] = true;
      }
    } else {
      KeyPoints points(kind.is_relative, kDoubles, call.size, rows, columns,
                       to);
      TF_RETURN_IF_ERROR(begin(&points));
      move(&points, [&](int64_t row) {
        const ImagePlace place = points.place(row);
        return place.y >= 0 && place.x >= 0 && place.y <= it.height &&
               place.x <= it.width;
      });
    }
    to += rows * columns;
  }
  return absl::OkStatus();
}

absl::Status PlacePieces(const Call& call) {
  const Tensor &given = call.input(1), &fill = call.input(2);
  const Tensor &pasted = call.input(4), &numbers = call.input(5);
  TF_RETURN_IF_ERROR(call.Fits(fill, {}));
  // A second image may be larger.
  const int64_t times =
      given.dims() == 4 && call.size.height > 0
          ? std::max<int64_t>(1, given.dim_size(1) / call.size.height)
          : 1;
  TF_RETURN_IF_ERROR(call.Fits(given, {call.batch, call.size.height * times,
                                       call.size.width * times, -1}));
  TF_ASSIGN_OR_RETURN(const Piece* const pieces, call.Pieces());
  const int64_t height = call.made.height, width = call.made.width;
  const int64_t number = call.input(3).dim_size(1), lines = height * times;
  const bool is_pasted = pasted.NumElements() > 0;
  if (is_pasted) {
    TF_RETURN_IF_ERROR(call.Fits(pasted, {call.batch, height, width}));
  }
  const bool renumbers =
      given.dtype() == tensorflow::DT_INT32 && numbers.NumElements() > 0;
  if (renumbers)
    TF_RETURN_IF_ERROR(call.Fits(numbers, {call.batch, number, -1}));
  const int64_t channels = given.dim_size(3);
  char* to;
  TF_RETURN_IF_ERROR(
      call.Allocate(0, {call.batch, lines, width * times, channels}, &to));
  // The bytes of a pixel of the images, and of a line of the result.
  const int64_t pixel =
      times * channels * static_cast<int64_t>(fill.tensor_data().size());
  const int64_t line = width * pixel;
  std::string empty;
  for (int64_t i = 0; i < width * times * channels; ++i) {
    empty.append(fill.tensor_data());
  }
  call.ForEachImage(2 * lines * line, [&](int64_t b) {
    const auto copy = [&](int64_t piece, const char* from, int64_t bytes,
                          char* at) {
      std::memcpy(at, from, bytes);
      if (!renumbers) return;
      const int64_t end = numbers.dim_size(2);
      const int32_t* const now = DataOf<int32_t>(numbers) + piece * end;
      auto* const ids = reinterpret_cast<int32_t*>(at);
      std::transform(ids, ids + bytes / sizeof(int32_t), ids, [&](int32_t id) {
        return id >= 0 && id < end ? now[id] : 0;
      });
    };
    for (int64_t y = 0; y < lines; ++y) {
      char* const row = to + (b * lines + y) * line;
      int64_t end = 0;
      for (int64_t i = b * number; i < (b + 1) * number; ++i) {
        const Piece& it = pieces[i];
        const int64_t in_part = y - it.made_y * times;
        if (in_part < 0 || in_part >= it.height * times) continue;
        const char* const from =
            DataOf<char>(given) +
            ((it.source * call.size.height + it.y) * times + in_part) *
                call.size.width * pixel +
            it.x * pixel;
        const int64_t left = it.made_x * pixel, bytes = it.width * pixel;
        if (is_pasted && i > b * number) {
          const bool* const mask = DataOf<bool>(pasted) + it.made_x +
                                   (b * height + y / times) * width;
          for (int64_t x = 0; x < it.width; ++x) {
            const int64_t at = x * pixel;
            if (mask[x]) copy(i, from + at, pixel, row + left + at);
          }
          continue;
        }
        if (left > end) std::memcpy(row + end, empty.data(), left - end);
        copy(i, from, bytes, row + left);
        end = std::max(end, left + bytes);
      }
      std::memcpy(row + end, empty.data(), line - end);
    }
  });
  return absl::OkStatus();
}

REFURBISH_TF_KERNEL("MosaicPieces", CompositeOp<MakeMosaicPieces>);
REFURBISH_TF_KERNEL("PastedObjects", CompositeOp<PasteObjects>);
REFURBISH_TF_KERNEL("PieceRows", CompositeOp<MovePieceRows>);
REFURBISH_TF_KERNEL("PlacePieces", CompositeOp<PlacePieces>);

}  // namespace
}  // namespace refurbish_tf
