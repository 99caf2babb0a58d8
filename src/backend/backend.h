#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "backend/activation.h"
#include "backend/backend_traits.h"
#include "backend/batch_view.h"
#include "backend/sample.h"
#include "backend/tap.h"
#include "backend/weight.h"
#include "backend/yardstick.h"
#include "base/check.h"
#include "base/id.h"
#include "kv/layout/kv_view.h"
#include "tensor/buffer.h"
#include "tensor/side.h"

namespace quire {

enum class NormKind : uint8_t { none, rms, layer };

// norm(x) = (x - mean) / sqrt(variance + epsilon) * weight + bias; rms leaves out mean and bias.
struct Norm {
  NormKind kind = NormKind::none;
  float epsilon = 0;
  Weight weight;
  Weight bias;
};

enum class Nonlinearity : uint8_t {
  silu,
  gelu_tanh,
  gelu_erf,
  clamped_swiglu,  // gpt-oss: both inputs clamped to `limit`, gate * sigmoid(slope * gate) * (up + 1)
  xielu,           // Apertus: above 0 limit * x^2 + x / 2, below (e^x - 1 - x) * slope + x / 2; has no up
  sigmoid,
  squared_relu,  // max(x, 0)^2
  softplus,      // ln(1 + e^x)
  product,       // x itself: of a gate and an up their product
  limited_silu,  // silu(min(gate, limit)) * up, which is clamped to `limit`
};

// What an MLP does between its two products: f(gate) * up, or f(gate) where there is no up.
struct Gate {
  Nonlinearity kind = Nonlinearity::silu;
  float limit = 7;  // of clamped_swiglu, limited_silu and xielu
  float slope = 1.702f;
};

struct EmbedParams {
  Rows out;          // [tokens, dim]
  Weight table;      // tokens that it has no row for have the first
  Weight positions;  // learned position rows, or nothing
  float scale = 1;
};

// stream = stream_scale * (stream + branch_scale * branch_norm(branch)), then out = norm(stream).
struct NormQuantizeParams {
  // Whether the norm sees the stream with the branch. Blocks that run side by side see the same stream.
  enum class Order : uint8_t { add_then_norm, norm_then_add };

  Rows stream;       // [tokens, dim], updated
  Rows branch;       // [tokens, dim], or nothing
  Rows branch_gate;  // [tokens, 1], or nothing: a row of the branch is times the sigmoid of its own
  const Norm* branch_norm = nullptr;
  float branch_scale = 1;
  float stream_scale = 1;      // then multiplies the sum. REQUIRES: 1 where there is no branch
  const Norm* norm = nullptr;  // or nothing: the branch is added, and `out` stays what it is
  Order order = Order::add_then_norm;
  std::span<const uint32_t>
      rows;  // out row i is of stream row rows[i]; empty: every row. Needs the branch added before.
  Activation out;
};

struct Projection {
  Weight weight;  // [out, in]
  Weight bias;    // [out], or nothing
  Rows out;       // [tokens, out]
};

struct ProjectParams {
  Activation in;
  std::span<const Projection> projections;
};

struct ActivateParams {
  Rows gate;
  Rows up;            // or nothing
  uint32_t span = 1;  // values of `up` that share one of `gate`
  Gate function;
  Activation out;
};

// The angles of a step's rotary positions: cos and sin, [tokens, pairs] each.
struct RopeTableParams {
  Rows cos;
  Rows sin;
  std::span<const float> inverse_frequencies;  // by pair
  float scale = 1;                             // multiplies cos and sin (yarn, longrope)
  uint32_t step = 1;                           // positions are rounded down to multiples of it
};

enum class RopePairing : uint8_t { interleaved, halves };  // (2i, 2i+1), or (i, i + pairs)

// Grows the queries of late tokens: by slope * ln(1 + floor((position + offset) / step)).
struct QueryTemperature {
  float slope = 0;  // 0: none
  uint32_t step = 1;
  uint32_t offset = 0;

  float at(uint32_t position) const {
    return float(1 + double(slope) * std::log1p(double((uint64_t(position) + offset) / step)));
  }
};

enum class HeadNormOrder : uint8_t { before_rotation, after_rotation };

struct RopeStoreParams {
  Rows query;  // [tokens, heads * head_dim], the first of each head rotated in place
  Rows key;    // [tokens, kv_heads * head_dim], or nothing: the rows are another layer's, and there already
  Rows value;  // [tokens, kv_heads * value_dim], or nothing where a stream has none
  uint32_t head_dim = 0;  // of a query: KvStream::query_dim
  const Norm* query_norm =
      nullptr;  // over a head, or over the whole row if its weight is that wide; or nothing
  const Norm* key_norm = nullptr;
  // What the norms are over where their weights do not say: those of a head each, though there is a weight for every value of
  // the row, or none at all. 0: the weights say it.
  uint32_t norm_span = 0;
  HeadNormOrder norm_order = HeadNormOrder::before_rotation;  // after: REQUIRES norms over heads
  Rows cos;                                                   // [tokens, pairs], or nothing: no rotation
  Rows sin;
  RopePairing pairing = RopePairing::halves;
  QueryTemperature temperature = {};
  KvView kv;
};

// Turns some values of each head, in place: those from `first` on, two for each pair of the angles. Or turns them back, as if the position
// were below 0.
struct RotateHeadsParams {
  enum class Turn : uint8_t { forth, back };
  Rows rows;  // [tokens, heads * head_dim]
  uint32_t head_dim = 0;
  uint32_t first = 0;
  Rows cos, sin;  // [tokens, pairs]
  RopePairing pairing = RopePairing::interleaved;
  Turn turn = Turn::forth;
};

// Rows of several tokens, as many as the stride of `kv` says: each is written with the last of them. Value by value it is the mean of what
// the tokens have kept, under the softmax of their gates; normed, and the end of it rotated. Of inputs that are twice as wide the first half
// is for the row after the token's own and the second for that: such a row is of twice as many tokens, and the first of those there are.
struct CompressRowsParams {
  KvView inputs;  // f32: what rows are made of (keys), and its gates (values). REQUIRES: they are stored
  Weight bias;    // [stride, width of an input]: what gates get by the token's place among those of its row
  Norm norm;      // of a row
  Rows cos, sin;  // [tokens, pairs]: of a row's last token the angles of the row
  RopePairing pairing = RopePairing::interleaved;
  KvView kv;  // where rows go: one head, of keys alone or of values alone
};

// Keys that are stored, made those of tokens that stand before their own.
struct RotateKeysParams {
  std::byte* keys = nullptr;  // of one head, one row after the other
  const KvLayerLayout* layer = nullptr;
  std::span<const uint32_t> back;              // by row: so many positions; 0: it stays as it is
  std::span<const float> inverse_frequencies;  // by pair
  RopePairing pairing = RopePairing::halves;
};

// Rows that tokens attend to where they do not attend to all that they see: the
// `most` with the largest scores. A score is the sum over the heads of
// weights[h] * max(query[h] . key, 0); of equal ones the earlier row comes
// first, and one that is no number is the least. A token that sees no more than
// `most` attends to all, and nothing is written for it.
struct ChooseRowsParams {
  Rows query;    // [tokens, heads * key_dim]
  Rows weights;  // [tokens, heads]
  uint32_t heads = 0;
  KvView kv;  // of the index: one head, and keys alone
  uint32_t most = 0;
  std::span<uint32_t> chosen;  // [tokens, most], ascending
};

// Which blocks of so many rows each KV head of a token attends to, by an index with a head for each of them: the last `local` ones, of
// which the token's own is one, and of the others those in which a row scores most, query . key; of equal ones the earlier comes first,
// and a row whose score is no number counts for nothing. A token that sees no more than `most` blocks attends to all, and nothing is
// written for it. REQUIRES: 1 <= local <= most; pages divide a block.
struct ChooseBlocksParams {
  Rows query;          // [tokens, heads * key_dim]
  uint32_t heads = 0;  // KV heads of those that attend
  KvView kv;           // of the index: one head, and keys alone
  uint32_t block = 0, most = 0, local = 1;
  std::span<uint32_t> chosen;  // numbers of blocks, [tokens, heads, most], ascending
};

struct AttendParams {
  Rows query;  // [tokens, heads * query_dim]
  uint32_t heads = 0;
  KvView kv;           // the window is in its layer's shape
  uint32_t chunk = 0;  // a token sees those of its own chunk of so many alone; 0: there are no chunks
  float scale = 1;
  float soft_cap = 0;  // 0: none
  // Rows of another stream that are attended to after those, in the same softmax; or nothing. They may be of several tokens, and are
  // seen from the last of them on. REQUIRES: heads as those of `kv`, no window and no chunks there, and no slopes.
  KvView beside = {};
  // Of tokens that see more than `most` rows (of `beside`, if it is there) those that they attend to, [tokens, most]; 0: they attend to all.
  // REQUIRES: one KV head, no window, no chunks.
  std::span<const uint32_t> chosen = {};
  uint32_t most = 0;
  // Not rows are chosen but blocks of so many, by each KV head, as choose_blocks gives them: [tokens, KV heads, most]. REQUIRES: as there,
  // no window, no chunks, and nothing beside.
  uint32_t block = 0;
  Weight sinks;  // [heads]: a logit per head that takes part in the softmax and has no value; or nothing
  // [heads]: what a score loses, after the soft cap, with every row that its key is behind the query; or nothing. REQUIRES: of the run
  // no row was let go, so that rows are positions.
  std::span<const float> slopes = {};
  Activation out;  // [tokens, heads * value_dim]
};

// Rows of heads whose first halves are one thing and whose second halves another.
struct SplitHeadsParams {
  Rows both;  // [tokens, heads * 2 * head_dim]
  uint32_t head_dim = 0;
  Rows first, second;  // [tokens, heads * head_dim]
};

// A matrix for each head: the first of a head's numbers are multiplied with its own, and what is left of them stands before the results.
struct ProjectHeadsParams {
  Rows in;  // [tokens, heads * (cols + rest)]
  uint32_t heads = 0;
  Weight weight;   // [heads * rows, cols], stacked
  Activation out;  // [tokens, heads * (rest + rows)]
};

// Which key head a value head goes with: heads of one key stand together, or come round in turn.
enum class KeyOrder : uint8_t { grouped, tiled };

// A convolution over the last tokens, each channel by itself: f(bias + the sum of weight[i] in[t - (span - 1) + i]). Before the
// sequence inputs are 0.
struct ConvolveParams {
  Rows in;                            // [tokens, channels]
  Rows out;                           // [tokens, channels], elsewhere
  uint32_t span = 4;                  // tokens that it sees: at least 2
  Weight weight;                      // [channels, span]
  Weight bias;                        // [channels], or nothing
  std::optional<Gate> function = {};  // of the sums
  KvView inputs;                      // state: the last span - 1 rows of `in`, the oldest first, f32
};

// Gated delta net: a state S of [key_dim, value_dim] for each value head, which a token makes e^g S, and then S + k (v - S^T k) beta;
// what it reads there is S^T q. Queries and keys are made as long as one, and queries divided by sqrt(key_dim). g = rate
// softplus(alpha + alpha_bias), beta = sigmoid(beta); there is a g for each head, or for each of its keys (KDA). The result is normed
// head by head and multiplied with f(gate).
struct DeltaNetParams {
  Rows
      mixed;  // [tokens, channels]: queries and keys of all key heads, then values of all value heads; queries and keys are changed
  Rows gate;  // [tokens, value_heads * value_dim]
  Nonlinearity gate_function = Nonlinearity::silu;
  // [tokens, value_heads] each, alpha as wide as alpha_bias; or nothing in alpha: both are in beta, those of each key head's value heads
  // together, first beta.
  Rows beta, alpha;
  uint32_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  KeyOrder order = KeyOrder::grouped;
  Weight rate;        // [value_heads]: -e^A
  Weight alpha_bias;  // [value_heads], or [value_heads * key_dim]
  Weight norm;        // [value_dim]
  float epsilon = 0;
  KvView state;    // state: S of each value head, f32
  Activation out;  // [tokens, value_heads * value_dim]
};

// Mamba-2: a state S of [state_dim, head_dim] for each head, which a token makes e^(rate dt) S + b (dt x), with dt = softplus(step +
// step_bias); what it reads there is S^T c, to which skip x is added. That is multiplied with SiLU(gate) and normed group by group.
struct StateSpaceParams {
  Rows mixed;  // [tokens, channels]: x of all heads, then b of all groups, then c
  Rows gate;   // [tokens, heads * head_dim]
  Rows step;   // [tokens, heads]
  uint32_t heads = 0, groups = 0, head_dim = 0, state_dim = 0;
  Weight rate, step_bias, skip;  // [heads]
  Weight norm;                   // [heads * head_dim], or nothing
  float epsilon = 0;
  KvView state;    // state: S of each head, f32
  Activation out;  // [tokens, heads * head_dim]
};

// Mamba-1: the same, but every channel is a head of one value, has a step of its own and a rate for each value of the state; b and c are
// those of all; there is no norm.
struct SelectiveScanParams {
  Rows in;                 // [tokens, width]
  Rows gate;               // [tokens, width]
  Rows step;               // [tokens, width], changed
  Rows key, query;         // [tokens, state_dim]: b and c
  Weight rate;             // [width, state_dim]
  Weight step_bias, skip;  // [width]
  KvView state;            // state: [state_dim, width], f32
  Activation out;          // [tokens, width]
};

// What queries to come are expected to make of the first rows of a run. Those of a head are taken to be normally
// distributed like its samples, so that the exponential of a score has the mean exp(score).
struct ExpectedScoresParams {
  Rows samples;  // [samples, heads * head_dim], not turned
  uint32_t heads = 0;
  KvView kv;  // of a layer without a window
  float scale = 1;
  uint32_t run = 0;  // of the batch
  uint32_t rows = 0;
  Rows scores;       // [heads, rows]
  Rows value_norms;  // [kv_heads, rows]
};

// What a router's results become before experts are chosen by them.
enum class RouterScore : uint8_t {
  softmax,
  sigmoid,
  softmax_of_chosen,  // the results themselves; the shares of the chosen are their softmax
  sqrt_softplus,      // sqrt(ln(1 + e^x))
  sparse_mixer,       // Phi-MoE: the share of one is its softmax among those not chosen yet that are near it
};

// How a token gets its experts: those with the best scores, and of each a share.
struct Routing {
  RouterScore score = RouterScore::softmax;
  bool normalized = true;  // shares sum to 1
  float scale = 1;         // multiplies shares
  // Experts are in groups of equal size, one after the other, of which those with the largest sums of their best `group_best`
  // scores are chosen first.
  uint32_t groups = 1, groups_used = 1, group_best = 2;
  float nearness = 0;  // of sparse_mixer: how far, relative to it, a score may be below the best
};
// What shares are divided by is at least this: scores may all be 0.
inline constexpr float kLeastShareSum = 1e-20f;

struct RouteExpertsParams {
  Activation in;
  Weight router;        // [experts, dim]
  Weight bias;          // [experts], or nothing
  Weight choice_bias;   // [experts], or nothing: added to scores where experts are chosen, and not in shares
  Weight share_scales;  // [experts], or nothing: multiply the shares of the chosen, last of all
  // [vocabulary, used], i32: the experts of a token, which are not chosen then; or nothing. Tokens that it has no row for have the first.
  // REQUIRES: all of them are below the number of experts.
  Weight by_token = {};
  Routing routing = {};
  uint32_t used = 0;
  std::span<uint32_t> experts;  // [tokens, used]
  std::span<float> shares;      // [tokens, used]
};

enum class ShareUse : uint8_t { of_outputs, of_inputs };  // what a share multiplies

struct ProjectExpertsParams {
  Activation in;
  std::span<const uint32_t> experts;  // [tokens, used]
  std::span<const float> shares;
  ShareUse share_use = ShareUse::of_outputs;
  uint32_t used = 0;
  uint32_t expert_width = 0;             // of the hidden layer
  Weight gate, up, down;                 // [experts * out, in]; or no gate
  Weight gate_bias, up_bias, down_bias;  // [experts * out], or nothing
  Gate function;
  Rows out;                                                 // [tokens, dim]
  ColumnSums gate_sums = {}, up_sums = {}, down_sums = {};  // of what each of them reads
};

// Beside the residual stream a model may have others of its width. All of them are foretold from each other before a layer, and corrected
// after it by what has become of the first.
struct MixStreamsParams {
  enum class What : uint8_t {
    open,     // the others, which hold what matrices made of the stream, are made as large as it
    predict,  // each gets a mix of all: the others at once, the stream by `out`
    correct,  // each gets a share of what the stream is now and was not foretold to be
    close,    // the stream becomes the mean of all, the others being made as large as it
  };
  What what = What::open;
  Rows stream;   // [tokens, dim]
  Rows streams;  // [tokens, count * dim]: what the first was foretold to be, then the others
  uint32_t count = 0;
  Rows routed = {};  // [tokens, count], of predict and correct
  Weight coefficients =
      {};  // of them what tanh(routed) is multiplied with: [count * count, count], or [count, count]
  Weight scale = {};          // [dim], of correct
  Rows out = {};              // [tokens, dim], of both: what is to be added to the stream
  Activation corrected = {};  // [tokens, dim], of correct: the stream with it, times scale
};

// Several streams that each block reads a mix of, and gives what it made to (hyper-connections). Of a token with streams x_s, made `y`:
//
//   give   x_k = post_k y + sum over j of comb_jk x_j
//   take   of a product of all streams, [pre, post, comb]: pre_s = sigmoid(scale_0 pre_s + base) + epsilon, post_s = 2 sigmoid(scale_1
//          post_s + base), and comb's rows are the softmax of scale_2 comb + base, plus epsilon; whose columns, and then rows and columns
//          in turn, `iterations` times in all, are divided by their sums plus epsilon. What is read is the sum of pre_s x_s
//   close  the same without post and comb
struct ConnectStreamsParams {
  enum class What : uint8_t {
    open,  // every stream becomes `stream`, and what is given next leaves them as they are
    give,
    take,
    close
  };
  What what = What::open;
  Rows stream;  // [tokens, dim]: what is given, or what is read
  Rows
      streams;  // [tokens, width(dim, count)]: the streams, and behind them post and comb for what is given next
  uint32_t count = 0;
  uint32_t iterations = 1;
  float epsilon = 0;
  Rows routed = {};              // [tokens, (2 + count) * count], of close [tokens, count]: the product
  Weight scale = {}, base = {};  // [3] and as wide as the product; of close [1]

  static size_t width(size_t dim, size_t count) { return count * dim + count + count * count; }
};

struct LogitsParams {
  Activation in;  // [rows, dim]
  Weight head;    // [vocab, dim]
  Weight bias;
  float scale = 1;
  float soft_cap = 0;  // 0: none
  Rows out;            // [rows, vocab]
};

struct ByteCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  size_t bytes = 0;
};

// A device and the operations a model is made of, at fused grain. Whatever is asked for happens in that order; of an eager
// backend it has happened when the call returns, of another when `wait` says so. A call's parameters are read before it
// returns; the rows, pages, tokens and values that they point to must stay until it has happened. Each output element is
// computed by a sequence of operations that depends on the model and the token's position only. Whatever is asked for may
// throw Error, after which others may be asked for; or DeviceLost, after which nothing may. Engine thread only.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual BackendTraits traits() const { return {}; }
  // Bytes that weights, pages and workspace may still take; 0: not known.
  virtual size_t available_memory() const { return 0; }
  // All that there are, whoever has them; 0: not known.
  virtual size_t total_memory() const { return 0; }
  // Of a backend that is two (SplitBackend) the one of that side. What the whole is asked for it asks the device for.
  virtual Backend& side(Side /*which*/) { return *this; }
  const Backend& side(Side which) const { return const_cast<Backend*>(this)->side(which); }
  // Measures this device; null: it cannot be measured.
  virtual std::unique_ptr<Yardstick> make_yardstick(const YardstickOptions&) const { return nullptr; }

  virtual Buffer allocate(size_t bytes) = 0;
  // Either may be in its own memory or in the host's; they may overlap.
  virtual void copy(std::byte* to, const std::byte* from, size_t bytes) { std::memmove(to, from, bytes); }
  // The place in the order of all that was asked for so far; and all of it up to there has happened.
  using Mark = uint64_t;
  virtual Mark mark() { return 0; }
  virtual void wait(Mark /*mark*/) {}

  // Memory of the host that copies to and from the device are fast with.
  virtual Buffer allocate_host(size_t bytes) { return Buffer(bytes); }
  // Copies between the device's memory and the host's beside the order: they happen one after the other and after all that was
  // asked for so far, but what is asked for later does not wait for them. Their ends must stay, and nobody may write to them, until
  // they have happened.
  using AsideMark = uint64_t;
  virtual AsideMark copy_aside(std::span<const ByteCopy> copies) {
    for (const ByteCopy& one : copies) copy(one.to, one.from, one.bytes);
    return 0;
  }
  // What is asked for from now on happens after the copies up to there.
  virtual void order_after_aside(AsideMark /*mark*/) {}
  // How many seconds the copies of a mark took, as far as that is known; nothing: they have not happened.
  virtual std::optional<double> aside_seconds(AsideMark /*mark*/) { return 0.0; }
  virtual void wait_aside(AsideMark /*mark*/) {}

  // So many bytes of prepared weights will be asked for.
  virtual void expect_weights(size_t /*bytes*/) {}
  // A weight where and as this backend's operations want it: once, after loading. Every weight goes through it.
  virtual Weight prepare(const Weight& weight, const WeightUse& use) = 0;
  // The same of a gate and an up whose results meet in `activate`, or in project_experts, and nowhere else: they may be kept as one.
  virtual void prepare_gated(Weight& gate, Weight& up, const WeightUse& use) {
    gate = prepare(gate, use);
    up = prepare(up, use);
  }
  // What that takes of the backend's memory, beside the file's; 0: nothing, it stays where it is.
  virtual size_t prepared_bytes(const MatrixView& weight, const WeightUse& use) const = 0;
  virtual ActivationForm form_for(DType weight) const = 0;
  virtual size_t activation_bytes(ActivationForm form, size_t width) const = 0;

  // Puts what was drawn in the place of tokens that nobody knew when the step was made.
  virtual void feed_drawn(std::span<TokenId> tokens, std::span<const DrawnToken> drawn,
                          std::span<const SampleResult> results) {
    for (const DrawnToken& one : drawn) tokens[one.token] = results[one.draw].token;
  }
  // Set once per step: the operations read tokens, positions, runs and page tables from it. `kv`: the views that they will be
  // given, by group.
  virtual void begin_step(const BatchView& batch, std::span<const KvGroupView> kv) = 0;
  // Something was thrown in the middle of a step: what was asked for and has not begun is not wanted any more.
  virtual void forget_step() {}

  virtual void embed(const EmbedParams& params) = 0;
  virtual void norm_quantize(const NormQuantizeParams& params) = 0;
  virtual void project(const ProjectParams& params) = 0;
  virtual void activate(const ActivateParams& params) = 0;
  virtual void rope_table(const RopeTableParams& params) = 0;
  virtual void rope_store(const RopeStoreParams& params) = 0;
  virtual void attend(const AttendParams& params) = 0;
  // `attend`: what attend gets at the tap's layer. REQUIRES: the token's keys are stored.
  virtual void tap(const Tap& tap, const AttendParams& attend, std::span<float> values) = 0;
  // What a product reads. `matrices`: which of them reads each row; empty: there is one. REQUIRES: the traits say that it can.
  virtual void tap_columns(const Rows& /*rows*/, std::span<const uint32_t> /*matrices*/,
                           const ColumnSums& /*sums*/) {
    CHECK(false);
  }
  // Between two steps. REQUIRES: the traits say that it can.
  virtual void rotate_keys(const RotateKeysParams& /*params*/) { CHECK(false); }
  // REQUIRES: the rows are stored.
  virtual void expected_scores(const ExpectedScoresParams& params) = 0;
  // REQUIRES: the traits say that it has them.
  virtual void split_heads(const SplitHeadsParams& /*params*/) { CHECK(false); }
  virtual void convolve(const ConvolveParams& /*params*/) { CHECK(false); }
  virtual void delta_net(const DeltaNetParams& /*params*/) { CHECK(false); }
  virtual void state_space(const StateSpaceParams& /*params*/) { CHECK(false); }
  virtual void selective_scan(const SelectiveScanParams& /*params*/) { CHECK(false); }
  virtual void project_heads(const ProjectHeadsParams& /*params*/) { CHECK(false); }
  virtual void choose_rows(const ChooseRowsParams& /*params*/) { CHECK(false); }
  virtual void choose_blocks(const ChooseBlocksParams& /*params*/) { CHECK(false); }
  virtual void rotate_heads(const RotateHeadsParams& /*params*/) { CHECK(false); }
  virtual void compress_rows(const CompressRowsParams& /*params*/) { CHECK(false); }
  virtual void connect_streams(const ConnectStreamsParams& /*params*/) { CHECK(false); }
  virtual void mix_streams(const MixStreamsParams& /*params*/) { CHECK(false); }
  // Each row less its mean and so many times its standard deviation, and what is then below 0 becomes 0.
  virtual void cut_below(const Rows& /*rows*/, float /*spread*/) { CHECK(false); }
  virtual void route_experts(const RouteExpertsParams& params) = 0;
  virtual void project_experts(const ProjectExpertsParams& params) = 0;
  virtual void logits(const LogitsParams& params) = 0;
  virtual void sample(std::span<const SampleParams> params, std::span<SampleResult> results) = 0;
};

}  // namespace quire
