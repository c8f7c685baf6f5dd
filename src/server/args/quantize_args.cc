#include "server/args/quantize_args.h"

#include "core/command_line.h"
#include "core/error.h"
#include "server/args/parse_words.h"

namespace switchyard {

std::optional<QuantizeArgs> ParseQuantize(const std::vector<std::string>& args) {
  QuantizeArgs a;
  CommandLine app(
      "Quantizes a checkpoint and writes it in compressed-tensors' layout, which this program and "
      "vLLM load. If the command was interrupted, the same command continues",
      "switchyard quantize");
  app.Option("DIR", a.from, "Directory of a checkpoint in float32, bfloat16 or float16").Required();
  app.Option("OUT", a.to, "Directory to write, new or empty").Required();
  app.Option("--format", a.format,
             "Format of the linears: int4 (groups), int8 (rows, with int8 activations), fp8 (128 x "
             "128 blocks), fp8-channel (rows), mxfp4 (routed experts only), nvfp4. Embeddings, "
             "head, norms and routers stay as they are")
      .OneOf({"int4", "int8", "fp8", "fp8-channel", "mxfp4", "nvfp4"});
  app.Option("--group-size", a.group_size, "int4: number of columns that share a scale")
      .ShowDefault()
      .Range(8, 1 << 20);
  app.Switch("--zero-points", a.zero_points, "Options",
             "Zero points of int4 groups: a smaller error, and 3 % more memory; vLLM's MoE layers "
             "need int4 without them");
  app.Option("--ignore", a.ignore,
             "Linear layers that are not quantized: parts of names (self_attn), or re: and a "
             "regular expression");
  app.Option("--config", a.config, "JSON file with rules for parts of the model").ExistingFile();
  app.Option("--max-shard-size", a.shard_gb, "Maximum size of an output file, in GB").ShowDefault();
  app.Option("--threads", a.threads, "Default: all CPUs that the process may use").Range(1, 1024);
  if (!ParseWords(app, args)) return std::nullopt;
  if (a.format != "int4" && (app.Given("--group-size") || app.Given("--zero-points"))) {
    throw Invalid("{}: needs --format int4",
                  app.Given("--group-size") ? "--group-size" : "--zero-points");
  }
  if (a.format.empty() && a.config.empty()) {
    throw Invalid(
        "--format: missing; want int4, int8, fp8, fp8-channel, mxfp4 or nvfp4, or "
        "--config FILE");
  }
  if (!(a.shard_gb > 0)) throw Invalid("--max-shard-size {}: want more than 0", a.shard_gb);
  return a;
}

}  // namespace switchyard
