#!/usr/bin/env python3
"""Write the quantized checkpoints beside this script, each with the packing code of the package that publishes it.

  make_quantized.py [NAME ...] [--output FOLDER]

All are made from one small model: fixtures/qwen3_moe, cut to a dense layer, a MoE layer of 4 experts (each made from
two experts of the original) and a vocabulary of 128. NAME/ gets config.json, model.safetensors and
reference.safetensors:

  prompt          int64 [T]
  logits          float32 [T, V], of `transformers` in float32 with the weights that the package itself dequantizes
  weight.MODULE   float32 [N, K], the dequantized weights of two modules

The packing code of each checkpoint:

  fp8_tensor               torch's float8 and the layout of Hugging Face's fp8 with static scales, which has no packer
  ct_*                     compressed-tensors: its compressors, and its config.json
  modelopt_fp8, _nvfp4,    NVIDIA ModelOpt's export: to_quantized_weight, NVFP4QTensor (scales by column, input scales
    _w4a8                  and hf_quant_config.json as its unified export names them)
  gptq, gptq_act_order     AutoGPTQ's QuantLinear.pack, dequantized by its forward
  awq                      AutoAWQ's WQLinear_GEMM.from_linear, dequantized by its dequantize_gemm
  w4afp8                   the layout of SGLang's DeepSeek-R1-W4AFP8, which has no published packer

  pip install torch==2.15.0 transformers==5.23.0 safetensors compressed-tensors==0.20.0 nvidia-modelopt==0.47.0 requests
  pip install --no-deps auto-gptq==0.7.1 accelerate psutil
  pip install --no-deps --no-build-isolation autoawq==0.2.9

Some packages are imported without their __init__, because it requires old versions of transformers.
"""
import argparse
import importlib.util
import json
import pathlib
import sys
import tempfile
import types

import safetensors.torch
import torch
import transformers

HERE = pathlib.Path(__file__).resolve().parent
BASE = HERE.parent / "fixtures" / "qwen3_moe"
GROUP = 32
EXPERTS, VOCABULARY = 4, 128
REFERENCE_MODULES = ["model.layers.0.self_attn.o_proj", "model.layers.1.mlp.experts.3.down_proj"]


def base_model():
    """config.json and tensors of the model from which all checkpoints are made."""
    stored = {}
    for file in sorted(BASE.glob("model*.safetensors")):
        stored.update(safetensors.torch.load_file(file))
    weights = {"model.norm.weight": stored["model.norm.weight"]}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = stored[name][:VOCABULARY].clone()
    for layer in (0, 1):
        prefix = f"model.layers.{layer}."
        for name, tensor in stored.items():
            if name.startswith(prefix) and ".mlp." not in name:
                weights[name] = tensor

    def expert(name, first, count, dim):
        parts = [stored[f"model.layers.1.mlp.experts.{first + i}.{name}.weight"] for i in range(count)]
        return torch.cat(parts, dim).contiguous()

    for name, dim in (("gate_proj", 0), ("up_proj", 0), ("down_proj", 1)):
        weights[f"model.layers.0.mlp.{name}.weight"] = expert(name, 8, 4, dim)
        for e in range(EXPERTS):
            weights[f"model.layers.1.mlp.experts.{e}.{name}.weight"] = expert(name, 2 * e, 2, dim)
    weights["model.layers.1.mlp.gate.weight"] = stored["model.layers.1.mlp.gate.weight"][:EXPERTS].clone()
    config = json.loads((BASE / "config.json").read_text())
    config.update(num_hidden_layers=2, mlp_only_layers=[0], intermediate_size=128, moe_intermediate_size=64,
                  num_experts=EXPERTS, num_experts_per_tok=2, vocab_size=VOCABULARY, eos_token_id=VOCABULARY - 1)
    return config, {name: tensor.float() for name, tensor in weights.items()}


def is_linear(name):
    return name.endswith("_proj.weight")


class Made:
    """Result of a packer: the stored tensors, and the weight of each linear layer as the package dequantizes it."""

    def __init__(self):
        self.tensors, self.weights, self.config = {}, {}, {}
        self.files = {}  # further JSON files
        self.dtype = "bfloat16"

    def put(self, module, tensors, weight):
        for suffix, tensor in tensors.items():
            self.tensors[f"{module}.{suffix}"] = tensor.contiguous()
        self.weights[f"{module}.weight"] = weight.float()


def each_linear(weights):
    return [(name.removesuffix(".weight"), weight) for name, weight in weights.items() if is_linear(name)]


def amax(weight, dim=None):
    return weight.abs().amax() if dim is None else weight.abs().amax(dim, keepdim=True)


def fp8_tensor(weights):
    made = Made()
    for i, (module, weight) in enumerate(each_linear(weights)):
        scale = amax(weight) / 448
        codes = (weight / scale).to(torch.float8_e4m3fn)
        made.put(module, {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.02 + 0.001 * i)},
                 codes.float() * scale)
    made.config = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    return made


# --- compressed-tensors ---


def compressed_tensors(weights, quantization_format, arguments, inputs=None):
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    args = QuantizationArgs(**arguments)
    scheme = QuantizationScheme(targets=["Linear"], weights=args,
                                input_activations=QuantizationArgs(**inputs) if inputs else None)
    compressor = BaseCompressor.get_value_from_registry(quantization_format)
    made = Made()
    for module, weight in each_linear(weights):
        state = {"weight": weight}
        if args.strategy == "block":
            rows, columns = args.block_structure
            tiles = torch.nn.functional.pad(weight, (0, -weight.shape[1] % columns, 0, -weight.shape[0] % rows))
            tiles = tiles.unfold(0, rows, rows).unfold(1, columns, columns)
            low, high = tiles.amin((-1, -2)), tiles.amax((-1, -2))
        elif args.group_size and args.group_size > 0:
            groups = weight.unflatten(1, (-1, args.group_size))
            low, high = groups.amin(-1), groups.amax(-1)
        elif args.strategy == "channel":
            low, high = weight.amin(1, keepdim=True), weight.amax(1, keepdim=True)
        else:
            low, high = weight.amin().reshape(1), weight.amax().reshape(1)
        if args.strategy == "tensor_group":
            state["weight_global_scale"] = generate_gparam(weight.amin(), weight.amax()).reshape(1)
        scale, zero = calculate_qparams(low, high, args, global_scale=state.get("weight_global_scale"))
        state["weight_scale"], state["weight_zero_point"] = scale.float(), zero.to(torch.int8)
        if quantization_format in ("pack-quantized", "int-quantized"):
            state["weight_scale"] = state["weight_scale"].bfloat16()
        packed = compressor.compress(state, scheme)
        made.put(module, packed, read_compressed(compressor, packed, scheme))
    config = QuantizationConfig(config_groups={"group_0": scheme}, format=quantization_format,
                                ignore=["lm_head", "re:.*mlp.gate$"], quantization_status="compressed")
    made.config = json.loads(config.model_dump_json())
    return made


def read_compressed(compressor, packed, scheme):
    """The weight in float32. The package's decompress would round it to the dtype of its scales, and e2m1 weights to
    bfloat16."""
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    scale = packed["weight_scale"]
    if scheme.weights.type == "float" and scheme.weights.num_bits == 4:
        codes = packed["weight_packed"]
        values = unpack_fp4_from_uint8(codes, codes.shape[0], 2 * codes.shape[1]).float()
        return dequantize(values, compressor._decompress_scale(scale, torch.float32), args=scheme.weights,
                          global_scale=packed.get("weight_global_scale"), dtype=torch.float32)
    if scale.dtype == torch.bfloat16:
        packed = {**packed, "weight_scale": scale.float()}
    return compressor.decompress(packed, scheme)["weight"]


PER_TOKEN = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True, "symmetric": True}


def ct_fp8_channel(weights):
    return compressed_tensors(weights, "float-quantized",
                              {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}, PER_TOKEN)


def ct_fp8_block(weights):
    return compressed_tensors(
        weights, "float-quantized",
        {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128], "symmetric": True},
        {**PER_TOKEN, "strategy": "group", "group_size": 128})


def ct_int8(weights):
    return compressed_tensors(weights, "int-quantized",
                              {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True},
                              {**PER_TOKEN, "type": "int"})


def ct_int4(weights):
    return compressed_tensors(weights, "pack-quantized",
                              {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP})


def ct_int4_zeros(weights):
    return compressed_tensors(
        weights, "pack-quantized",
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP, "symmetric": False})


def ct_nvfp4(weights):
    return compressed_tensors(weights, "nvfp4-pack-quantized",
                              {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
                               "scale_dtype": "torch.float8_e4m3fn"})


def ct_mxfp4(weights):
    return compressed_tensors(weights, "mxfp4-pack-quantized",
                              {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32,
                               "scale_dtype": "torch.uint8"})


# --- ModelOpt ---


def modelopt(made, algorithm, **extra):
    quantization = {"quant_algo": algorithm, "kv_cache_quant_algo": None,
                    "exclude_modules": ["lm_head", "model.layers.*.mlp.gate"], **extra}
    made.files["hf_quant_config.json"] = {"producer": {"name": "modelopt", "version": "0.47.0"},
                                          "quantization": quantization}
    return made


def modelopt_fp8(weights):
    from modelopt.torch.export.quant_utils import to_quantized_weight
    made = Made()
    for i, (module, weight) in enumerate(each_linear(weights)):
        scale = amax(weight) / 448
        codes = to_quantized_weight(weight, scale, "fp8")
        made.put(module, {"weight": codes, "weight_scale": scale, "input_scale": torch.tensor(0.02 + 0.001 * i)},
                 codes.float() * scale)
    return modelopt(made, "FP8")


def modelopt_nvfp4(weights):
    from modelopt.torch.export.quant_utils import to_quantized_weight
    from modelopt.torch.quantization.qtensor import NVFP4QTensor
    made = Made()
    for module, weight in each_linear(weights):
        scale, scale_2 = NVFP4QTensor.get_weights_scaling_factor(weight, 16)
        codes = to_quantized_weight(weight, scale, "nvfp4", scale_2, 16)
        stored = NVFP4QTensor(weight.shape, torch.float32, codes)
        made.put(module, {"weight": codes, "weight_scale": scale, "weight_scale_2": scale_2,
                          "input_scale": torch.tensor(0.01)},
                 stored.dequantize(scale=scale, double_scale=scale_2, block_sizes={-1: 16}))
    return modelopt(made, "NVFP4", group_size=16)


def modelopt_w4a8(weights):
    """Scales by column (pre_quant_scale) where ModelOpt leaves them: before o_proj and down_proj of the dense layer."""
    from modelopt.torch.export.quant_utils import to_quantized_weight
    made = Made()
    generator = torch.Generator().manual_seed(1)
    for i, (module, weight) in enumerate(each_linear(weights)):
        tensors, columns = {}, torch.ones(weight.shape[1])
        if module.startswith("model.layers.0") and module.endswith(("o_proj", "mlp.down_proj")):
            columns = 0.5 + torch.rand(weight.shape[1], generator=generator)
            tensors["pre_quant_scale"] = columns
        smoothed = weight / columns
        scale = (amax(smoothed.unflatten(1, (-1, GROUP)), -1) / 7).squeeze(-1)
        codes = to_quantized_weight(smoothed, scale, "w4a8_awq", None, GROUP)
        low, high = (codes & 15).to(torch.int8), (codes >> 4).to(torch.int8)
        values = torch.stack((low, high), 1).flatten(0, 1)
        values = torch.where(values > 7, values - 16, values).float()
        made.put(module, {**tensors, "weight": codes, "weight_scale": scale,
                          "weight_scale_2": amax(smoothed) / 448, "input_scale": torch.tensor(0.02 + 0.001 * i)},
                 values * scale.repeat_interleave(GROUP, 1) * columns)
    return modelopt(made, "W4A8_AWQ", group_size=GROUP, has_zero_point=False, pre_quant_scale=True)


# --- GPTQ, AWQ ---


def without_init(*packages):
    """Lets modules below these packages be imported without running the packages' own __init__."""
    for package in packages:
        if package in sys.modules:
            continue
        parent, _, leaf = package.rpartition(".")
        if parent:
            paths = [str(pathlib.Path(p) / leaf) for p in sys.modules[parent].__path__]
        else:
            paths = list(importlib.util.find_spec(package).submodule_search_locations)
        module = types.ModuleType(package)
        module.__path__ = paths
        sys.modules[package] = module


def group_parameters(weight, group_of_column, groups):
    """Asymmetric scales and zero points [N, groups] for codes 0 to 15; zero points from 1 on, as GPTQ stores them less 1."""
    scales, zeros = [], []
    for group in range(groups):
        part = weight[:, group_of_column == group]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        scale = ((high - low) / 14).half().float()
        scales.append(scale)
        zeros.append((-low / scale).round().clamp(1, 15))
    return torch.stack(scales, 1), torch.stack(zeros, 1)


def gptq_model(weights, act_order):
    without_init("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear")
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear
    made = Made()
    generator = torch.Generator().manual_seed(2)
    for module, weight in each_linear(weights):
        rows, columns = weight.shape
        order = torch.randperm(columns, generator=generator) if act_order else torch.arange(columns)
        g_idx = torch.empty(columns, dtype=torch.int32)
        g_idx[order] = torch.arange(columns, dtype=torch.int32) // GROUP
        scales, zeros = group_parameters(weight, g_idx, columns // GROUP)
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = weight.clone()
        layer = QuantLinear(4, GROUP, columns, rows, False, weight_dtype=torch.float32)
        layer.pack(linear, scales.clone(), zeros.clone(), g_idx)
        dequantized = layer(torch.eye(columns)).T
        made.put(module, {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales.half(),
                          "g_idx": layer.g_idx}, dequantized)
    made.config = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": act_order, "sym": False,
                   "damp_percent": 0.01, "static_groups": False, "true_sequential": True,
                   "checkpoint_format": "gptq"}
    if act_order:
        made.dtype = "float32"  # act-order weights are expanded to this dtype at load time
    return made


def gptq(weights):
    return gptq_model(weights, False)


def gptq_act_order(weights):
    return gptq_model(weights, True)


def awq(weights):
    without_init("awq", "awq.modules", "awq.modules.linear")
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm
    made = Made()
    for module, weight in each_linear(weights):
        rows, columns = weight.shape
        scales, zeros = group_parameters(weight, torch.arange(columns) // GROUP, columns // GROUP)
        linear = torch.nn.Linear(columns, rows, bias=False)
        linear.weight.data = (((weight / scales.repeat_interleave(GROUP, 1)).round()
                               + zeros.repeat_interleave(GROUP, 1)).clamp(0, 15)
                              - zeros.repeat_interleave(GROUP, 1)) * scales.repeat_interleave(GROUP, 1)
        layer = WQLinear_GEMM.from_linear(linear, 4, GROUP, scales=scales.T.contiguous(), zeros=zeros.T.contiguous())
        dequantized = dequantize_gemm(layer.qweight, layer.qzeros, layer.scales.float(), 4, GROUP).T
        made.put(module, {"qweight": layer.qweight, "qzeros": layer.qzeros, "scales": layer.scales}, dequantized)
    made.config = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
                   "modules_to_not_convert": ["mlp.gate."]}
    return made


def w4afp8(weights):
    made = Made()
    others = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    for i, (module, weight) in enumerate(each_linear(weights)):
        if ".experts." not in module:
            # One block, because no dimension of these weights exceeds 128.
            scale = (amax(weight) / 448).reshape(1, 1)
            codes = (weight / scale).to(torch.float8_e4m3fn)
            made.put(module, {"weight": codes, "weight_scale_inv": scale}, codes.float() * scale)
            continue
        scale = (amax(weight.unflatten(1, (-1, GROUP)), -1) / 7).squeeze(-1)
        values = (weight / scale.repeat_interleave(GROUP, 1)).round().clamp(-8, 7).to(torch.int8)
        packed = (values[:, 0::2] & 15) | (values[:, 1::2] << 4)
        made.put(module, {"weight": packed, "weight_scale_inv": scale}, values * scale.repeat_interleave(GROUP, 1))
        prefix, leaf = module.rsplit(".", 1)
        made.tensors[f"{prefix}.{others[leaf]}.input_scale"] = torch.tensor([0.02 + 0.001 * i], dtype=torch.bfloat16)
    made.config = {"quant_method": "w4afp8", "group_size": GROUP, "activation_scheme": "dynamic",
                   "ignored_layers": ["lm_head"]}
    return made


MAKERS = [fp8_tensor, ct_fp8_channel, ct_fp8_block, ct_int8, ct_int4, ct_int4_zeros, ct_nvfp4, ct_mxfp4, modelopt_fp8,
          modelopt_nvfp4, modelopt_w4a8, gptq, gptq_act_order, awq, w4afp8]


def reference_logits(config, weights, prompt):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in weights.items()},
                                    path / "model.safetensors", metadata={"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                                        output_loading_info=True)
        if info["missing_keys"] or info["mismatched_keys"] or info["unexpected_keys"]:
            raise SystemExit(f"the weights do not fill the model: {info}")
    with torch.no_grad():
        return model(prompt[None]).logits[0].float()


def write(made, config, plain, folder):
    config = {**config, "torch_dtype": made.dtype}
    if made.config:
        config["quantization_config"] = made.config
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": config, **made.files}.items():
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")
    kept = {name: tensor.bfloat16() for name, tensor in plain.items() if not is_linear(name)}
    safetensors.torch.save_file({**kept, **made.tensors}, folder / "model.safetensors", metadata={"format": "pt"})
    weights = {**{name: tensor.float() for name, tensor in kept.items()}, **made.weights}
    prompt = (torch.arange(16) * 37 + 5) % VOCABULARY
    config.pop("quantization_config", None)
    reference = {"prompt": prompt, "logits": reference_logits(config, weights, prompt)}
    for module in REFERENCE_MODULES:
        reference[f"weight.{module}"] = made.weights[f"{module}.weight"].contiguous()
    safetensors.torch.save_file(reference, folder / "reference.safetensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--output", type=pathlib.Path, default=HERE)
    arguments = parser.parse_args()
    config, weights = base_model()
    for maker in MAKERS:
        name = maker.__name__
        if arguments.names and name not in arguments.names:
            continue
        made = maker(weights)
        missing = {n for n in weights if is_linear(n)} - set(made.weights)
        assert not missing, missing
        worst = max((made.weights[n] - weights[n]).abs().max() / weights[n].abs().max() for n in made.weights)
        write(made, config, weights, arguments.output / name)
        print(f"{name}: largest error of a weight {worst:.3f} of its matrix' largest")


if __name__ == "__main__":
    main()
