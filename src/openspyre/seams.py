"""Every private seam that openspyre stands on: its name, the reason, and its end.

A seam is used where PyTorch has no public way. `ends` names the event after which it must go; the
test `tests/compile/test_seams.py` resolves every name and fails when one is gone.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seam:
    """One private name, as `module:attribute.path`."""

    name: str
    why: str
    ends: str


_REGISTRATION = "when torch has a public registration of Inductor backends"
_LOOP_IR = "when torch publishes its loop IR"

# --- frontend: torch.compile ---------------------------------------------------------------
FRONTEND: tuple[Seam, ...] = (
    Seam(
        "torch:_TorchCompileInductorWrapper.__call__",
        "Inductor settings cannot be tied to a device; one wrapper adds ours for our graphs only",
        "when register_backend_for_device takes config patches",
    ),
    Seam(
        "torch._inductor.codegen.common:register_backend_for_device",
        "the way to give Inductor a scheduling and a wrapper for a device",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.codegen.common:register_device_op_overrides",
        "Inductor asks for the text of device guards and synchronise calls",
        _REGISTRATION,
    ),
    Seam(
        "torch._dynamo.device_interface:register_interface_for_device",
        "Dynamo asks a device for its index, streams and properties",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.scheduler:BaseScheduling",
        "base class of our scheduling: one kernel for each run of nodes",
        _REGISTRATION,
    ),
    Seam(
        "torch._guards:TracingContext.try_get",
        "which inputs of a graph are parameters: `fw_metadata.static_input_indices`",
        "when Inductor gives a backend the static inputs of its graph",
    ),
    Seam(
        "torch._inductor.codegen.wrapper:PythonWrapperCodegen",
        "base class of our wrapper: allocation with a device index, kernel lines",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.codegen.wrapper:SubgraphPythonWrapperCodegen",
        "the same for torch.cond and while_loop bodies",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.codegen.common:Kernel",
        "mark_run needs a kernel in force while it allocates outputs",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.ops_handler:DefaultHandler",
        "base class of the recorder that reads loop bodies",
        _LOOP_IR,
    ),
    Seam(
        "torch._inductor.ir:ComputedBuffer.get_default_sizes_body",
        "loop nests with the dims the lowering had, not merged and reordered",
        _LOOP_IR,
    ),
    Seam(
        "torch._inductor.ir:NonOwningLayout",
        "pieces of a concatenation are views into one buffer; the region must know",
        _LOOP_IR,
    ),
    Seam(
        "torch._inductor.lowering:user_lowerings",
        "matmul as a nest of the region, for our device only",
        "when lowerings can be registered for one device",
    ),
    Seam(
        "torch._inductor.lowering:register_lowering",
        "lowers our own ops (linear, attention, layer_norm) to nests",
        "when lowerings can be registered for one device",
    ),
    Seam(
        "torch._inductor.custom_graph_pass:CustomGraphModulePass",
        "its uuid puts the version of our compiler into Inductor's cache keys",
        "when a backend can add to the cache key directly",
    ),
    Seam(
        "torch._inductor.custom_graph_pass:CustomGraphPass",
        "its uuid puts the user's lines, which our code names, into the keys of all caches",
        "when a backend can add to the cache key directly",
    ),
    Seam(
        "torch._inductor.custom_graph_pass:get_custom_graph_passes",
        "the user's own passes, which ours joins",
        "when a backend can add to the cache key directly",
    ),
    Seam(
        "torch._inductor.lowering:fallback_handler",
        "calls through the dispatcher what the card cannot evaluate, instead of failing",
        "when lowerings can be registered for one device",
    ),
    Seam(
        "torch._inductor.compile_fx:compile_fx",
        "compiles a graph of fake tensors up to the generated code, which estimates never call",
        "when torch can compile for a device without calling the result",
    ),
    Seam(
        "torch._subclasses.fake_tensor:FakeTensorMode",
        "tensors of the card that have sizes and no memory",
        "when torch has a public way to make them",
    ),
    Seam(
        "torch._inductor.decomposition:decompositions",
        "the table of ops taken apart before lowering; ours has more entries for the card",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.decomposition:fast_random_decomps",
        "a copy of that table which is made once",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.codegen.common:pointwise_overrides_data",
        "the names of the scalar functions that a graph may ask for",
        _LOOP_IR,
    ),
    Seam(
        "torch._inductor.utils:get_fused_kernel_name",
        "names of kernels in reports: the ATen ops of a region",
        _LOOP_IR,
    ),
    Seam(
        "torch.utils._sympy.functions:ModularIndexing",
        "sizes and indices of loop nests are sympy expressions of these functions",
        _LOOP_IR,
    ),
    Seam(
        "torch._ops:OpOverload.decompose",
        "outside a trace the stock composite runs, not our op",
        "when a composite can be kept whole by a public registration",
    ),
    Seam(
        "torch._C:_len_torch_dispatch_stack",
        "tells a trace from an eager call in nanoseconds",
        "when torch.compiler.is_compiling() is true inside AOTAutograd's trace",
    ),
    Seam(
        "torch.utils._python_dispatch:_get_current_dispatch_mode_stack",
        "tells the compiler's modes from a user's",
        "when torch.compiler.is_compiling() is true inside AOTAutograd's trace",
    ),
    Seam(
        "torch._C:_should_allow_numbers_as_tensors",
        "which ops take a Python number for a tensor when they are traced; others get one made",
        "when OpOverloads take numbers as torch's own functions do",
    ),
    Seam(
        "torch._C:_accelerator_exchangeDevice",
        "Dynamo's device guard for a device without a module of its own",
        "when torch.accelerator has exchange_device",
    ),
    Seam(
        "torch._C:_accelerator_maybeExchangeDevice",
        "the same for a device that may be -1",
        "when torch.accelerator has exchange_device",
    ),
    Seam(
        "torch._inductor.codegen.cpp_wrapper_cpu:CppWrapperCpu",
        "base class of the C++ around our kernels in an AOTInductor package",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.codegen.cpp_utils:DEVICE_TO_ATEN",
        "AOTInductor refuses devices that are not in this table",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.codecache:_get_cpp_wrapper_header",
        "AOTInductor precompiles a header of torch named like the device; ours is the CPU's",
        _REGISTRATION,
    ),
    Seam(
        "torch._inductor.virtualized:V",
        "the graph, its sizes and its wrapper while Inductor generates code",
        _LOOP_IR,
    ),
)

# --- device: the eager runtime --------------------------------------------------------------
DEVICE: tuple[Seam, ...] = (
    Seam(
        "torch._C:_get_privateuse1_backend_name",
        "whether another package holds the one out-of-tree device of a process",
        "when torch says publicly who registered the device",
    ),
    Seam(
        "torch:_register_device_module",
        "makes torch.spyre, which torch.get_device_module and others look for",
        "when the entry point of a backend can name its module",
    ),
    Seam(
        "torch:Tensor.__dlpack_device__",
        "it knows no renamed out-of-tree device, so that from_dlpack refuses what it could take",
        "when torch compares with the name that the backend was given",
    ),
    Seam(
        "torch._C._dynamo.eval_frame:set_eval_frame",
        "the native side calls Python of ours in frames that Dynamo looks at, and must not trace",
        "when Dynamo takes modules to leave alone",
    ),
)

# --- device: spyreccl ---------------------------------------------------------------------------
DISTRIBUTED: tuple[Seam, ...] = (
    Seam(
        "torch._C._distributed_c10d:ProcessGroupGloo",
        "carries what ranks say to each other, with its timeouts and its sense of ranks that end",
        "when torch.distributed exports it with its methods",
    ),
    Seam(
        "torch._C._distributed_c10d:PrefixStore",
        "keys of its own for each group; torch.distributed has it, but hides it from type checkers",
        "when torch.distributed exports it with its types",
    ),
    Seam(
        "torch._C._distributed_c10d:AllgatherOptions",
        "a timeout for one call of gloo",
        "when gloo's calls take a timeout",
    ),
    Seam(
        "torch._C._distributed_c10d:Work._source_rank",
        "who has sent a message that any rank could send",
        "when Work.source_rank answers for gloo",
    ),
)

# --- tools: estimates of models of transformers ---------------------------------------------
TOOLS: tuple[Seam, ...] = (
    Seam(
        "transformers.integrations.moe:_default_apply_gate",
        "the attribute that tells experts with a choice of implementation, and their gate",
        "when transformers has a base class of experts",
    ),
)

# --- hf: adapters and their proof -------------------------------------------------------------
HF: tuple[Seam, ...] = (
    Seam(
        "torch.utils._python_dispatch:TorchDispatchMode",
        "tells the ATen ops of a forward, and gives float64 where a model's code asks for float32",
        "when torch makes the mode public",
    ),
    Seam(
        "torch.fx.experimental.proxy_tensor:make_fx",
        "a replacement as ATen calls, to be compared as a formula",
        "when torch.export takes functions",
    ),
    Seam(
        "torch._decomp:core_aten_decompositions",
        "the same in few ops",
        "when torch.export takes functions",
    ),
)

# --- ci: PyTorch's own test material -----------------------------------------------------------
CI: tuple[Seam, ...] = (
    Seam(
        "torch.testing._internal.common_methods_invocations:op_db",
        "PyTorch's list of ops with sample arguments: what the survey of ops tries",
        "when torch publishes it for out-of-tree devices",
    ),
    Seam(
        "torch.testing._internal.common_methods_invocations:wrapper_set_seed",
        "gives random ops one seed for every call; the survey's process replaces it to tell them",
        "when an OpInfo says that its op is random",
    ),
    Seam(
        "torch.testing._internal.opinfo.core:UnaryUfuncInfo",
        "tells ops whose results have promised strides",
        "when torch publishes it for out-of-tree devices",
    ),
)

# --- vllm: what its plugin derives from; resolved by tests/serve/test_plugin.py ---------------
_WORKERS = "when vLLM has a public worker and runner for out-of-tree devices"
_LAYERS = "when vLLM has a public way to replace a layer twice, and one for TP-aware norms"
VLLM: tuple[Seam, ...] = (
    Seam(
        "vllm.v1.worker.gpu_worker:Worker._init_workspace_and_model_runner",
        "the half of init_device that is for every device",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.gpu_worker:Worker._maybe_get_memory_pool_context",
        "asks for an allocator of CUDA's",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.gpu_worker:Worker._make_model_runner",
        "the runner of the card",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.gpu_worker:init_worker_distributed_environment",
        "what init_device does between the device and the memory",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.sample_tokens",
        "takes a grammar's mask before logits are sampled; ours puts it on in its place",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._get_prompt_logprobs_dict",
        "asks for logits of a prompt's tokens with the adapters of a step's requests",
        "when vLLM says which request such logits are of",
    ),
    Seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._set_active_loras",
        "says which request's adapter those logits take",
        "when vLLM says which request such logits are of",
    ),
    Seam(
        "torch.cuda:Stream",
        "the runner asks it for the stream of drafts while it is made",
        "when vLLM asks torch.accelerator",
    ),
    Seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._copy_draft_token_ids_to_cpu",
        "writes zeros by a stream of CUDA's where a request reaches the model's length",
        "when vLLM asks torch.accelerator",
    ),
    Seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_run",
        "steps that make the graphs before requests come",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._dummy_sampler_run",
        "the same for sampling",
        _WORKERS,
    ),
    Seam(
        "vllm.v1.worker.block_table:ComputeSlotMappingKernel.kernel",
        "a Triton kernel; its parameters are those of ours",
        "when vLLM computes slots in PyTorch",
    ),
    Seam(
        "torch._inductor.lowering:add_layout_constraint",
        "vLLM's patch of FALLBACK_ALLOW_LIST loses the strides that PyTorch promises to its ops",
        "when vLLM's patch keeps them, or its ops have a tag for layouts",
    ),
    Seam(
        "torch._inductor.lowering:constrain_to_fake_tensors",
        "the constraint that PyTorch has for ops without a tag",
        "with the one above",
    ),
    Seam(
        "vllm.model_executor.custom_op:op_registry_oot",
        "which class makes a layer; `register_oot` refuses a second one",
        _LAYERS,
    ),
    Seam(
        "vllm.model_executor.hw_agnostic.custom_op:op_registry_oot",
        "the same for the hardware-agnostic layers",
        _LAYERS,
    ),
    Seam(
        "vllm.model_executor.models.transformers.fusers.rms_norm:TPAwareGemmaRMSNorm",
        "the norm that the Transformers backend builds, whatever GemmaRMSNorm is",
        _LAYERS,
    ),
    Seam(
        "vllm.model_executor.layers.logits_processor:LogitsProcessor._get_logits",
        "what LoRA puts its own in place of; ours is called by `forward` as vLLM's is",
        _LAYERS,
    ),
)

SEAMS = FRONTEND + DEVICE + DISTRIBUTED + TOOLS + HF + CI
