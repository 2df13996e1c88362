// AugMix (Hendrycks et al., ICLR 2020): blends an image with what chains of
// random operations make of it.
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "refurbish_tf/cc/base/elementary.h"
#include "refurbish_tf/cc/image/layer.h"
#include "refurbish_tf/cc/image/layer_chain.h"

namespace refurbish_tf {
namespace {

constexpr int kMostBranches = 16, kMostDepth = 16;
// Weights are in units of 1 / kWhole, so each is exact in float32.
constexpr int32_t kWhole = 1 << 24;
// Above all positions of operations, so weights are drawn independently.
constexpr uint64_t kWeightPosition = uint64_t{1} << 40;

// The logarithm, to base 2, of a number from Gamma(alpha): the number itself
// could be below all doubles. After Marsaglia and Tsang, *A Simple Method for
// Generating Gamma Variables*, ACM TOMS 2000, with the step of section 6 for
// each alpha, not only for those below 1.
double LogOfGamma(double alpha, const ImageSeed& seed) {
  const double d = alpha + 1 - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  uint64_t word = 0;
  const auto unit = [&] { return (seed.Word(word++) + 1.0) * 0x1p-32; };
  while (true) {
    // A normal number, by Marsaglia's polar method.
    const double x = 2 * unit() - 1, y = 2 * unit() - 1;
    const double square = x * x + y * y;
    if (square > 1 || square == 0) continue;
    const double normal = x * std::sqrt(-2 / kLog2E * Log2(square) / square);
    const double root = 1 + c * normal;
    if (root <= 0) continue;
    const double cube = root * root * root;
    const double limit =
        kLog2E * (normal * normal / 2 + d * (1 - cube)) + d * Log2(cube);
    if (Log2(unit()) < limit) return Log2(d * cube) + Log2(unit()) / alpha;
  }
}

// Draws `number` weights from Dirichlet(alpha, ..., alpha), and writes all but
// the last, which is what they leave of `kWhole`.
void DrawWeights(double alpha, int number, const ImageSeed& seed,
                 int32_t* draws) {
  std::vector<double> parts(number);
  for (int k = 0; k < number; ++k) {
    parts[k] = LogOfGamma(alpha, seed.SeedAt(k));
  }
  const double most = *std::max_element(parts.begin(), parts.end());
  for (double& part : parts) part = Exp2(part - most);
  const double total = std::accumulate(parts.begin(), parts.end(), 0.0);
  double sum = 0;
  int32_t before = 0;
  for (int k = 0; k < number - 1; ++k) {
    sum += parts[k];
    const int32_t end = static_cast<int32_t>(sum / total * kWhole + 0.5);
    draws[k] = end - before;
    before = end;
  }
}

class AugMix : public Layer {
 public:
  explicit AugMix(Arguments& arguments)
      : operation_(LayerChain::Of("layers", /*keeps_size=*/true, &arguments)),
        width_(static_cast<int>(arguments.Integer("width", 1, kMostBranches))),
        depths_(arguments.Range("depths", 1, kMostDepth)),
        least_(static_cast<int>(depths_[0])),
        most_(static_cast<int>(depths_[1])),
        alpha_(arguments.Numbers("alpha").front()) {
    if (!(alpha_ >= 0.001 && alpha_ <= 1000)) {
      arguments.Fail("alpha must be from 0.001 to 1000");
    }
  }

  // The weight of all branches together; the weights of all but the last
  // branch, which has the rest; and for each branch how far its depth is above
  // the least, and the draws of its operations.
  int num_draws() const override { return width_ + width_ * of_branch(); }
  void Draw(const ImageSeed& seed, const int32_t* /*before*/,
            int32_t* draws) const override {
    const ImageSeed weights = seed.SeedAt(kWeightPosition);
    DrawWeights(alpha_, 2, weights.SeedAt(0), draws);
    DrawWeights(alpha_, width_, weights.SeedAt(1), draws + 1);
    std::fill(draws + width_, draws + num_draws(), 0);
    for (int k = 0; k < width_; ++k) {
      int32_t* const own = draws + width_ + k * of_branch();
      own[0] = seed.Below(k, most_ - least_ + 1);
      for (int i = 0; i < least_ + own[0]; ++i) {
        operation_.Draw(seed.SeedAt(k * kMostDepth + i),
                        own + 1 + i * operation_.num_draws());
      }
    }
  }
  int64_t EndOfDraw(int i, const int32_t* draws) const override {
    if (i == 0) return kWhole + 1;
    if (i < width_) {
      return kWhole + 1 - std::accumulate(draws + 1, draws + i, int64_t{0});
    }
    const int place = (i - width_) % of_branch();
    if (place == 0) return most_ - least_ + 1;
    const int first = (place - 1) % operation_.num_draws();
    return operation_.EndOfDraw(first, draws + i - first);
  }
  void Apply(const int32_t* draws, Canvas* canvas) const override {
    constexpr float kUnit = 1.0f / kWhole;
    const float all = kUnit * static_cast<float>(draws[0]);
    std::vector<float> weights = {1 - all};
    for (int32_t rest = kWhole, k = 1; k <= width_; ++k) {
      const int32_t weight = k < width_ ? draws[k] : rest;
      weights.push_back(kUnit * static_cast<float>(weight) * all);
      rest -= weight;
    }
    canvas->Blend(weights, [&](int part, Canvas* copy) {
      // The first part is the image itself.
      if (part == 0) return;
      const int32_t* const own = draws + width_ + (part - 1) * of_branch();
      for (int i = 0; i < least_ + own[0]; ++i) {
        operation_.Apply(own + 1 + i * operation_.num_draws(), copy);
      }
    });
  }
  absl::StatusOr<ImageSpec> Behind(ImageSpec image) const override {
    RTF_ASSIGN_OR_RETURN(const ImageSpec made, OfThreeColors(image));
    RTF_RETURN_IF_ERROR(CheckSides(made));
    return made;
  }
  Movement movement() const override { return Movement::kBlends; }

 private:
  int of_branch() const { return 1 + most_ * operation_.num_draws(); }

  // Draws one of the operations, and applies it.
  const LayerChain operation_;
  const int width_;
  const std::array<double, 2> depths_;
  // How many operations a branch has.
  const int least_, most_;
  const double alpha_;
};

const LayerType<AugMix> kAugMix("augmix");

}  // namespace
}  // namespace refurbish_tf
