"""The outside peer of bench_train.py: the same updates by TRL's SFTTrainer, in a Python where `pip install trl==1.16.0` was done.

Called by bench_train.py --trl PYTHON; imports nothing of ours. Reads the samples (tokens, lm weights of 0 or 1) and prints tokens/s
and the peak of memory above what was there before, as JSON.
"""
import argparse
import json
import resource
import statistics
import tempfile
import time

p = argparse.ArgumentParser(description="One training of TRL's, measured.")
p.add_argument("--agent", required=True, help="a checkpoint")
p.add_argument("--samples", required=True, help="a JSON file")
p.add_argument("--batch-size", type=int, required=True)
p.add_argument("--micro-batch", type=int, required=True)
p.add_argument("--threads", type=int, required=True)
p.add_argument("--lora", action="store_true")
p.add_argument("--gradient-checkpointing", action="store_true")
args = p.parse_args()

import datasets  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import trl  # noqa: E402

torch.set_num_threads(args.threads)
with open(args.samples, encoding="utf-8") as file:
    samples = json.load(file)
rows = [{"input_ids": s["tokens"], "labels": [t if w else -100 for t, w in zip(s["tokens"], s["lm"])]} for s in samples]
model = transformers.AutoModelForCausalLM.from_pretrained(args.agent, dtype=torch.float32)
starts, ends, before = [], [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Watch(transformers.TrainerCallback):
    """When each update began and ended."""

    def on_step_begin(self, *ignored, **also_ignored):
        starts.append(time.perf_counter())

    def on_step_end(self, *ignored, **also_ignored):
        ends.append(time.perf_counter())


with tempfile.TemporaryDirectory() as folder:
    config = trl.SFTConfig(
        output_dir=folder, per_device_train_batch_size=args.micro_batch, gradient_accumulation_steps=args.batch_size // args.micro_batch,
        num_train_epochs=1, learning_rate=1e-5, max_grad_norm=1.0, use_cpu=True, bf16=False, max_length=None, report_to=[],
        save_strategy="no", gradient_checkpointing=args.gradient_checkpointing, train_sampling_strategy="sequential")
    trl.SFTTrainer(
        model, args=config, train_dataset=datasets.Dataset.from_list(rows), callbacks=[Watch()],
        processing_class=transformers.AutoTokenizer.from_pretrained(args.agent),
        peft_config=peft.LoraConfig(r=16, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM") if args.lora else None).train()
sizes = [sum(len(s["tokens"]) for s in samples[i:i + args.batch_size]) for i in range(0, len(samples), args.batch_size)]
rates = [size / (end - start) for size, start, end in zip(sizes, starts, ends)]
print(json.dumps({"rate": statistics.median(rates), "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before}))
