// Weights and names of models that take hidden rows of a target: MTP layers and EAGLE heads.
#include <initializer_list>

#include "model/weights/parts.h"

namespace switchyard {
namespace {

// The first name that is stored with `suffix`; if none is, the first name.
std::string Stored(const Parts& parts, std::initializer_list<const char*> names,
                   const char* suffix) {
  for (const char* name : names)
    if (parts.Has(std::string(name) + suffix)) return name;
  return *names.begin();
}

// Some MTP layers store a norm, but no embedding and no head. They use the target's embedding and
// head.
void UseMtpNames(const Parts& parts, const std::string& prefix, TensorNames* names) {
  const auto replace = [&](std::string& name, const std::string& own) {
    if (parts.Has(own)) name = own;
  };
  if (!names->mtp.empty()) {
    const auto own = [&](const std::string& name) { return MtpName(*names, name, 0) + ".weight"; };
    if (!names->mtp_embedding.empty()) replace(names->embedding, own(names->mtp_embedding));
    if (!names->mtp_head.empty()) replace(names->head, own(names->mtp_head));
    if (!names->mtp_final_norm.empty()) names->final_norm = own(names->mtp_final_norm);
    return;
  }
  replace(names->embedding, prefix + "embed_tokens.weight");
  replace(names->head, prefix + "shared_head.head.weight");
  names->final_norm = prefix + names->mtp_layer_norm + ".weight";
}

// SafeAILab and SGLang name the layer of EAGLE3 "midlayer", vLLM "layers.0". Names may begin with
// "model.".
void UseEagleNames(const Parts& parts, TensorNames* names) {
  constexpr const char* kOutput = "self_attn.o_proj.weight";
  names->layers =
      parts.config().eagle->inner_rows
          ? Stored(parts, {"midlayer.", "model.midlayer.", "layers.0.", "model.layers.0."}, kOutput)
          : Stored(parts, {"layers.0.", "model.layers.0."}, kOutput);
  names->embedding = Stored(parts, {"embed_tokens", "model.embed_tokens"}, ".weight") + ".weight";
  names->final_norm = Stored(parts, {"norm", "model.norm"}, ".weight") + ".weight";
  names->input_norm.clear();  // a part of the hidden input
}

}  // namespace

std::string LayerPrefix(const Parts& parts, int64_t index) {
  const ModelConfig& config = parts.config();
  if (config.eagle) return parts.names().layers;
  return LayerPrefix(parts.names(), config.first_layer + index);
}

void UseHiddenInputNames(const Parts& parts, TensorNames* names) {
  if (parts.config().is_mtp) UseMtpNames(parts, LayerPrefix(parts, 0), names);
  if (parts.config().eagle) UseEagleNames(parts, names);
}

HiddenInputWeights BuildHiddenInput(Parts& parts, int64_t depth) {
  const ModelConfig& config = parts.config();
  const int64_t hidden = config.hidden;
  const std::string prefix = LayerPrefix(parts, 0);
  const auto norm_of = [&](const std::string& name) {
    return parts.Norm(name + ".weight", hidden, "hidden_size");
  };
  const auto norm = [&](const char* name) { return norm_of(prefix + name); };
  const auto projection = [&](const std::string& name, int64_t width, bool bias,
                              std::string_view keys) {
    return parts.Rows(name, hidden, width, {0, hidden}, bias, keys);
  };
  const TensorNames& names = parts.names();
  const auto part = [&](const std::string& name) { return MtpName(names, name, depth); };
  if (config.is_mtp && config.streams)
    return {.embedding_norm = norm_of(part(names.mtp_embedding_norm)),
            .hidden_norm = norm_of(part(names.mtp_hidden_norm)),
            .projection = projection(part(names.mtp_projection), hidden, false, "hidden_size"),
            .embedding_projection =
                projection(part(names.mtp_embedding_projection), hidden, false, "hidden_size")};
  if (config.is_mtp && !names.mtp.empty())
    return {.embedding_norm = norm_of(part(names.mtp_embedding_norm)),
            .hidden_norm = norm_of(part(names.mtp_hidden_norm)),
            .projection = projection(part(names.mtp_projection), 2 * hidden, false, "hidden_size")};
  if (config.is_mtp)
    return {.embedding_norm = norm("enorm"),
            .hidden_norm = norm("hnorm"),
            .projection = projection(prefix + "eh_proj", 2 * hidden, false, "hidden_size")};
  const EagleConfig& eagle = *config.eagle;
  const std::string fc = Stored(parts, {"fc", "model.fc"}, ".weight");
  if (!eagle.inner_rows)
    return {.projection = projection(fc, 2 * hidden, eagle.projection_bias, "hidden_size, bias")};
  return {.embedding_norm = norm("input_layernorm"),
          .hidden_norm = norm("hidden_norm"),
          .projection = projection(fc, config.target_row_width(), eagle.projection_bias,
                                   "hidden_size, target_hidden_size, eagle_config, bias")};
}

}  // namespace switchyard
