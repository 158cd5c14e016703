"""The long lane `whisper`: speech to text with trained weights, the CPU's tokens.

`./dev test --long whisper` needs `espeak-ng` (a Debian package), which reads the text aloud.
Leaves `results/whisper.json`.
"""

from __future__ import annotations

import shutil
import subprocess
import wave
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoProcessor, WhisperForConditionalGeneration

from openspyre.hf.weights import WHISPER, fetch
from openspyre.runtime.profiler import profile
from tests.results import commit, write_result

TEXT = "The quick brown fox jumps over the lazy dog. Today is a beautiful day."
RATE = 16_000


def speech(folder: Path) -> np.ndarray:
    """TEXT as mono float32 at RATE."""
    if shutil.which("espeak-ng") is None:
        pytest.fail("there is no espeak-ng; try: apt-get install espeak-ng")
    file = folder / "speech.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "140", "-w", file, TEXT], check=True)
    with wave.open(str(file)) as sound:
        rate, frames = sound.getframerate(), sound.readframes(sound.getnframes())
    samples = np.frombuffer(frames, np.int16).astype(np.float32) / 32768
    count = len(samples) * RATE // rate
    return np.interp(np.arange(count) * rate / RATE, np.arange(len(samples)), samples).astype("f4")


@pytest.mark.timeout(3600)
def test_it_hears_what_was_said(tmp_path: Path) -> None:
    begun, folder = commit(), fetch("whisper")
    processor = AutoProcessor.from_pretrained(folder)
    heard = processor(speech(tmp_path), sampling_rate=RATE, return_tensors="pt").input_features

    def tokens(device: str, dtype: torch.dtype) -> torch.Tensor:
        model = WhisperForConditionalGeneration.from_pretrained(folder, dtype=dtype).eval()
        model.to(device)
        return model.generate(
            heard.to(device, dtype), language="en", task="transcribe", do_sample=False
        ).cpu()

    expected = tokens("cpu", torch.float32)
    with profile() as measured:
        got = tokens("spyre", torch.float16)
    text = processor.batch_decode(got, skip_special_tokens=True)[0].strip()
    found = {
        "weights": WHISPER.form, "text": text, "tokens": got.shape[1],
        "same_as_cpu": torch.equal(got, expected), "fallbacks": dict(measured.fallbacks),
        "card_us": sum(kernel.microseconds for kernel in measured.kernels),
    }  # fmt: skip
    write_result("whisper", found, begun=begun)
    assert text.endswith("Today is a beautiful day.")
    assert torch.equal(got, expected)
    assert measured.fallbacks == {}
