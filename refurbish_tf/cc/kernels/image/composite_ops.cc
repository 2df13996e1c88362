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

// An op on a batch of images, whose results may have another size.
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
    try {
      OP_REQUIRES_OK(ctx, Make(ctx));
    } catch (const std::bad_alloc&) {
      ctx->SetStatus(ResourceExhausted("Out of memory for ", called_, "."));
    }
  }

 protected:
  virtual absl::Status Make(OpKernelContext* ctx) = 0;

  // The size of the result for images of this size.
  ImageSize MadeOf(ImageSize given) const {
    return size_.height > 0 && size_.width > 0 ? size_ : given;
  }
  double min_visibility() const { return min_visibility_; }
  const std::string& called() const { return called_; }
  // Checks that an input has this shape; -1 allows any number.
  absl::Status Fits(const Tensor& tensor,
                    const std::vector<int64_t>& shape) const {
    bool fits = tensor.dims() == static_cast<int>(shape.size());
    for (int d = 0; fits && d < tensor.dims(); ++d) {
      fits = shape[d] < 0 || shape[d] == tensor.dim_size(d);
    }
    if (fits) return absl::OkStatus();
    return InvalidArgument(called_, " must be of shape [",
                           absl::StrJoin(shape, ", "),
                           "] beside these images and their boxes, where -1 is "
                           "any number, got ",
                           tensor.shape().DebugString(), ".");
  }
  // The seed and the probabilities of a batch.
  absl::Status Draws(OpKernelContext* ctx, int64_t batch, ImageSeed* seed,
                     const float** p) const {
    TF_ASSIGN_OR_RETURN(*seed, ParseSeed(ctx->input(1)));
    TF_RETURN_IF_ERROR(Fits(ctx->input(2), {batch}));
    *p = ctx->input(2).flat<float>().data();
    if (std::all_of(*p, *p + batch, [](float p) { return p >= 0 && p <= 1; })) {
      return absl::OkStatus();
    }
    return InvalidArgument("p of ", called_, " must be from 0 to 1.");
  }
  // Pieces of images of these sizes.
  absl::StatusOr<const Piece*> PiecesOf(const Tensor& tensor, int64_t batch,
                                        ImageSize given, ImageSize made) const {
    TF_RETURN_IF_ERROR(Fits(tensor, {batch, -1, kNumbers}));
    const auto are_in = [](int64_t begin, int64_t side, int64_t whole) {
      return begin >= 0 && side >= 0 && begin + side <= whole;
    };
    const auto* const pieces =
        reinterpret_cast<const Piece*>(tensor.flat<int32_t>().data());
    for (int64_t i = 0; i < batch * tensor.dim_size(1); ++i) {
      const Piece& it = pieces[i];
      if (!are_in(it.source, 1, batch) ||
          !are_in(it.y, it.height, given.height) ||
          !are_in(it.x, it.width, given.width) ||
          !are_in(it.made_y, it.height, made.height) ||
          !are_in(it.made_x, it.width, made.width)) {
        return InvalidArgument("`pieces` must be within the images.");
      }
    }
    return pieces;
  }
  template <class Work>
  static void ForEachImage(OpKernelContext* ctx, int64_t batch, int64_t bytes,
                           const Work& work) {
    const bool lacks_memory =
        ForEachPart(ctx, batch, bytes, [&](int64_t begin, int64_t end) {
          for (int64_t b = begin; b < end; ++b) work(b);
        });
    if (lacks_memory) throw std::bad_alloc();
  }

 private:
  ImageSize size_;
  float min_visibility_;
  // How errors call what the op works on.
  std::string called_;
};

class MosaicPiecesOp : public CompositeOp {
 public:
  using CompositeOp::CompositeOp;

  absl::Status Make(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    TF_RETURN_IF_ERROR(Fits(images, {-1, -1, -1, -1}));
    const int64_t batch = images.dim_size(0);
    const ImageSize size = {images.dim_size(1), images.dim_size(2)};
    ImageSeed seed(0, 0);
    const float* p;
    TF_RETURN_IF_ERROR(Draws(ctx, batch, &seed, &p));
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({batch, kMosaicPieces, kNumbers}), &output));
    auto* const pieces =
        reinterpret_cast<Piece*>(output->flat<int32_t>().data());
    const Shifts shifts = DrawShifts(seed, batch, kMosaicPieces - 1);
    for (int64_t b = 0; b < batch; ++b) {
      DrawMosaic(seed, b, batch, shifts, p[b], size, MadeOf(size),
                 pieces + b * kMosaicPieces);
    }
    return absl::OkStatus();
  }
};

class PastedObjectsOp : public CompositeOp {
 public:
  using CompositeOp::CompositeOp;

  absl::Status Make(OpKernelContext* ctx) override {
    const Tensor& maps = ctx->input(0);
    const Tensor& ids = ctx->input(3);
    TF_RETURN_IF_ERROR(Fits(maps, {-1, -1, -1}));
    const int64_t batch = maps.dim_size(0);
    const ImageSize size = {maps.dim_size(1), maps.dim_size(2)};
    TF_RETURN_IF_ERROR(Fits(ids, {batch, -1}));
    ImageSeed seed(0, 0);
    const float* p;
    TF_RETURN_IF_ERROR(Draws(ctx, batch, &seed, &p));
    const int64_t rows = ids.dim_size(1), pixels = size.height * size.width;
    Tensor *pieces_output, *pasted_output, *stays_output, *visible_output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({batch, kPastePieces, kNumbers}), &pieces_output));
    TF_RETURN_IF_ERROR(ctx->allocate_output(1, maps.shape(), &pasted_output));
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        2, TensorShape({batch, kPastePieces, rows}), &stays_output));
    TF_RETURN_IF_ERROR(ctx->allocate_output(3, TensorShape({batch, rows, 4}),
                                            &visible_output));
    auto* const pieces =
        reinterpret_cast<Piece*>(pieces_output->flat<int32_t>().data());
    const int64_t shift = DrawShifts(seed, batch, 1)[0];
    ForEachImage(ctx, batch, 10 * pixels, [&](int64_t b) {
      bool* const pasted = pasted_output->flat<bool>().data() + b * pixels;
      std::fill_n(pasted, pixels, false);
      // What is pasted comes first, and is nothing in an image that is alone.
      for (int64_t k = kPastePieces - 1; k >= 0; --k) {
        const int64_t source = k == 0 ? b : (b + shift) % batch;
        pieces[b * kPastePieces + k] = {static_cast<int32_t>(source), 0, 0,
                                        static_cast<int32_t>(size.height),
                                        static_cast<int32_t>(size.width)};
        const std::vector<Object> objects = DrawPasted(
            seed, b, shift == 0 ? 0 : p[b], size,
            maps.flat<int32_t>().data() + source * pixels,
            ids.flat<int32_t>().data() + source * rows, rows, k == 0, pasted);
        for (int64_t row = 0; row < rows; ++row) {
          const auto& [all, left, box] = objects[row];
          stays_output->tensor<bool, 3>()(b, k, row) =
              left > 0 ? static_cast<double>(left) >=
                             (min_visibility() - kPartRounding) *
                                 static_cast<double>(all)
                       : k == 0 && all == 0;
          // The objects of the image itself are the last ones written.
          double* const to = &visible_output->tensor<double, 3>()(b, row, 0);
          to[0] = left < all ? box.left : -1;
          to[1] = box.top;
          to[2] = box.right;
          to[3] = box.bottom;
        }
      }
    });
    return absl::OkStatus();
  }
};

class PieceRowsOp : public CompositeOp {
 public:
  explicit PieceRowsOp(OpKernelConstruction* ctx) : CompositeOp(ctx) {
    std::string kind;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("kind", &kind));
    OP_REQUIRES_VALUE(kind_, ctx, TargetKind::Named(kind));
  }

  absl::Status Make(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    const Tensor& given = ctx->input(1);
    const Tensor& cut = ctx->input(3);
    TF_RETURN_IF_ERROR(Fits(images, {-1, -1, -1, -1}));
    const int64_t batch = images.dim_size(0);
    const ImageSize size = {images.dim_size(1), images.dim_size(2)};
    const bool has_three = given.dims() == 3 && given.dim_size(2) == 3;
    const int columns = kind_.is_boxes() ? 4 : has_three ? 3 : 2;
    TF_RETURN_IF_ERROR(Fits(given, {batch, -1, columns}));
    TF_ASSIGN_OR_RETURN(const Piece* const pieces,
                        PiecesOf(ctx->input(2), batch, size, MadeOf(size)));
    const int64_t rows = given.dim_size(1), number = ctx->input(2).dim_size(1);
    const bool has_cut = cut.NumElements() > 0;
    if (has_cut) TF_RETURN_IF_ERROR(Fits(cut, {batch, rows, 4}));
    Tensor *output, *stays;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0, TensorShape({batch, number, rows, columns}), &output));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(1, TensorShape({batch, number, rows}), &stays));
    for (int64_t i = 0; i < batch * number; ++i) {
      double* const to = output->flat<double>().data() + i * rows * columns;
      std::copy_n(
          given.flat<double>().data() + pieces[i].source * rows * columns,
          rows * columns, to);
      const double* const left =
          has_cut && i % number == 0
              ? cut.flat<double>().data() + i / number * rows * 4
              : nullptr;
      TF_RETURN_IF_ERROR(Move(pieces[i], size, rows, columns, left, to,
                              stays->flat<bool>().data() + i * rows));
    }
    return absl::OkStatus();
  }

 private:
  // Moves the rows of an image to where its piece is. `cut`: the box around
  // what is left of each object, if its first number is not negative.
  absl::Status Move(const Piece& piece, ImageSize size, int64_t rows,
                    int columns, const double* cut, double* numbers,
                    bool* stays) const {
    const Edges part = Edges::Of({piece.y, piece.x, piece.height, piece.width});
    const int64_t down = piece.made_y - piece.y, right = piece.made_x - piece.x;
    const auto begin = [&](TargetRows* moved) {
      const absl::Status status = moved->Begin();
      if (status.ok()) return status;
      return InvalidArgument(called(), " must ", status.message(), " in row ",
                             moved->refused(), " of image ", piece.source, ".");
    };
    if (!kind_.is_boxes()) {
      KeyPoints points(kind_.is_relative, kDoubles, size, rows, columns,
                       numbers);
      TF_RETURN_IF_ERROR(begin(&points));
      const ImageSize made = MadeOf(size);
      const Box box = {piece.y, piece.x, piece.height, piece.width};
      points.Crop(box, Border::kEmpty, kBlack);
      points.Crop({-piece.made_y, -piece.made_x, made.height, made.width},
                  Border::kEmpty, kBlack);
      for (int64_t row = 0; row < rows; ++row) {
        const ImagePlace place = points.place(row);
        stays[row] = place.y >= piece.made_y && place.x >= piece.made_x &&
                     place.y <= piece.made_y + piece.height &&
                     place.x <= piece.made_x + piece.width;
      }
      return absl::OkStatus();
    }
    Boxes boxes(kind_, kDoubles, size, rows, numbers);
    TF_RETURN_IF_ERROR(begin(&boxes));
    Boxes made(kind_, kDoubles, MadeOf(size), rows, numbers);
    for (int64_t row = 0; row < rows; ++row, cut += cut == nullptr ? 0 : 4) {
      const Edges all = boxes.edges(row);
      stays[row] = false;
      if (!all.HasArea()) continue;
      Edges left = {std::max(all.top, part.top), std::max(all.left, part.left),
                    std::min(all.bottom, part.bottom),
                    std::min(all.right, part.right)};
      const bool is_cut = cut != nullptr && cut[0] >= 0;
      if (is_cut) left = {cut[1], cut[0], cut[3], cut[2]};
      const double visible = left.HasArea() ? left.Area() / all.Area() : 0;
      const double side = 1 - kPixelRounding;
      stays[row] =
          is_cut || visible > 1 - kPartRounding ||
          (visible > 0 && visible + kPartRounding >= min_visibility() &&
           left.bottom - left.top >= side && left.right - left.left >= side);
      made.Set(row, {left.top + down, left.left + right, left.bottom + down,
                     left.right + right});
    }
    return absl::OkStatus();
  }

  TargetKind kind_;
};

class PlacePiecesOp : public CompositeOp {
 public:
  using CompositeOp::CompositeOp;

  absl::Status Make(OpKernelContext* ctx) override {
    const Tensor& images = ctx->input(0);
    const Tensor& given = ctx->input(1);
    const absl::string_view fill = ctx->input(2).tensor_data();
    const Tensor& pasted = ctx->input(4);
    const Tensor& ids = ctx->input(5);
    const Tensor& new_ids = ctx->input(6);
    TF_RETURN_IF_ERROR(Fits(images, {-1, -1, -1, -1}));
    TF_RETURN_IF_ERROR(Fits(ctx->input(2), {}));
    const int64_t batch = images.dim_size(0);
    const ImageSize size = {images.dim_size(1), images.dim_size(2)};
    // A second image may be larger.
    const int64_t times =
        given.dims() == 4 && size.height > 0
            ? std::max<int64_t>(1, given.dim_size(1) / size.height)
            : 1;
    TF_RETURN_IF_ERROR(
        Fits(given, {batch, size.height * times, size.width * times, -1}));
    const ImageSize made = MadeOf(size);
    TF_ASSIGN_OR_RETURN(const Piece* const pieces,
                        PiecesOf(ctx->input(3), batch, size, made));
    const int64_t number = ctx->input(3).dim_size(1);
    const bool is_pasted = pasted.NumElements() > 0;
    if (is_pasted) {
      TF_RETURN_IF_ERROR(Fits(pasted, {batch, size.height, size.width}));
    }
    const int64_t rows = ids.dims() == 2 ? ids.dim_size(1) : 0;
    const bool renumbers = given.dtype() == tensorflow::DT_INT32 &&
                           new_ids.dims() == 3 && new_ids.dim_size(0) > 0;
    if (renumbers) {
      TF_RETURN_IF_ERROR(Fits(ids, {batch, rows}));
      TF_RETURN_IF_ERROR(Fits(new_ids, {batch, number, rows}));
    }
    Tensor* output;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        0,
        TensorShape({batch, made.height * times, made.width * times,
                     given.dim_size(3)}),
        &output));
    const char* const from = given.tensor_data().data();
    char* const to = const_cast<char*>(output->tensor_data().data());
    // The bytes of a pixel of the images, and of lines.
    const int64_t pixel =
        times * given.dim_size(3) * static_cast<int64_t>(fill.size());
    const int64_t from_line = size.width * pixel;
    const int64_t line = made.width * pixel;
    std::string empty;
    while (static_cast<int64_t>(empty.size()) < line) empty.append(fill);
    ForEachImage(ctx, batch, 2 * made.height * times * line, [&](int64_t b) {
      std::vector<Instances> numbers(number, Instances(0));
      for (int64_t k = 0; k < number && renumbers; ++k) {
        const int64_t source = pieces[b * number + k].source;
        for (int64_t row = 0; row < rows; ++row) {
          numbers[k].Add(ids.matrix<int32_t>()(source, row),
                         new_ids.tensor<int32_t, 3>()(b, k, row));
        }
      }
      const auto copy = [&](int64_t k, const char* begin, int64_t bytes,
                            char* at) {
        if (!renumbers) {
          std::memcpy(at, begin, bytes);
          return;
        }
        const auto* const pixels = reinterpret_cast<const int32_t*>(begin);
        std::transform(pixels, pixels + bytes / sizeof(int32_t),
                       reinterpret_cast<int32_t*>(at),
                       [&](int32_t id) { return numbers[k][id]; });
      };
      for (int64_t y = 0; y < made.height * times; ++y) {
        char* const row = to + (b * made.height * times + y) * line;
        int64_t end = 0;
        for (int64_t k = 0; k < number; ++k) {
          const Piece& it = pieces[b * number + k];
          const int64_t in_part = y - it.made_y * times;
          if (in_part < 0 || in_part >= it.height * times) continue;
          const char* const begin =
              from + it.x * pixel +
              (it.source * given.dim_size(1) + it.y * times + in_part) *
                  from_line;
          if (is_pasted && k > 0) {
            const bool* const mask = &pasted.tensor<bool, 3>()(b, y / times, 0);
            const bool *at = mask, *const stop = mask + size.width;
            while ((at = std::find(at, stop, true)) != stop) {
              const int64_t first = (at - mask) * pixel;
              at = std::find(at, stop, false);
              copy(k, begin + first, (at - mask) * pixel - first, row + first);
            }
            continue;
          }
          const int64_t left = it.made_x * pixel;
          if (left > end) std::memcpy(row + end, empty.data(), left - end);
          copy(k, begin, it.width * pixel, row + left);
          end = std::max(end, left + it.width * pixel);
        }
        std::memcpy(row + end, empty.data(), line - end);
      }
    });
    return absl::OkStatus();
  }
};

REFURBISH_TF_KERNEL("MosaicPieces", MosaicPiecesOp);
REFURBISH_TF_KERNEL("PastedObjects", PastedObjectsOp);
REFURBISH_TF_KERNEL("PieceRows", PieceRowsOp);
REFURBISH_TF_KERNEL("PlacePieces", PlacePiecesOp);

}  // namespace
}  // namespace refurbish_tf
