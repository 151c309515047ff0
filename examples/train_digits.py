"""Train a small network on handwritten digits with fused linear layers, beside a plain NumPy reference.

    python examples/train_digits.py [--backend auto|cupy|torch|numpy] [--activation relu|gelu] [--plot digits.png]

The data are the 1797 images of 8 x 8 pixels that come with scikit-learn. Both networks start from the same weights and
see the same batches, so their losses fall together; the fused one takes two products per layer on the way back, with
bias, activation, mask and bias gradient inside them. Needs no GPU: without one the layers run on NumPy.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from devkernels.linear import FusedMLP
from devkernels.target import driver_present

SIZES = [64, 256, 128, 10]
BATCH, RATE, DECAY, NOISE = 64, 2e-3, 1e-4, 0.3
GOAL = 0.97


def load(seed: int):
    """Pixels scaled to 0..1 and labels, split into training and test halves of each class (3 : 1)."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    return train_test_split(
        (digits.data / 16.0).astype(np.float32),
        digits.target,
        test_size=0.25,
        stratify=digits.target,
        random_state=seed,
    )


def noisy(images, random):
    """The images with noise, new in each epoch, so that 1347 of them teach more than themselves."""
    return images + NOISE * random.standard_normal(images.shape, dtype=np.float32)


def softmax_loss(xp, logits, labels, reduce_type):
    """Mean cross entropy, and its gradient with regard to the logits."""
    wide = logits.astype(reduce_type)
    wide = wide - wide.max(axis=1, keepdims=True)
    logs = wide - xp.log(xp.exp(wide).sum(axis=1, keepdims=True))
    rows = xp.arange(len(labels))
    gradient = xp.exp(logs)
    gradient[rows, labels] -= 1
    return -logs[rows, labels].mean(), (gradient / len(labels)).astype(logits.dtype)


class Adam:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), for any list of arrays of one package."""

    def __init__(self, xp, parameters):
        self.xp, self.parameters, self.step = xp, parameters, 0
        self.mean = [xp.zeros_like(p) for p in parameters]
        self.square = [xp.zeros_like(p) for p in parameters]

    def update(self, gradients) -> None:
        self.step += 1
        rate, unbias = RATE / (1 - 0.9**self.step), 1 / (1 - 0.999**self.step)
        for p, g, m, s in zip(self.parameters, gradients, self.mean, self.square, strict=True):
            m += 0.1 * (g - m)
            s += 0.001 * (g * g - s)
            p *= 1 - RATE * DECAY
            p -= rate * m / (self.xp.sqrt(s * unbias) + 1e-8)


class FusedNetwork:
    """`devkernels.linear.FusedMLP` on CuPy or NumPy."""

    def __init__(self, package: str, activation: str, seed: int):
        self.mlp = FusedMLP(SIZES, activation=activation, dtype="float32", package_name=package, seed=seed)
        self.xp = self.mlp.layers[0].arrays.xp
        self.optimiser = Adam(self.xp, self.mlp.parameters())

    def train(self, x, labels) -> float:
        logits = self.mlp.forward(self.xp.asarray(x))
        loss, gradient = softmax_loss(self.xp, logits, self.xp.asarray(labels), "float32")
        _, gradients = self.mlp.backward(gradient)
        self.optimiser.update([g for pair in gradients for g in pair])
        return float(loss)

    def classify(self, x) -> np.ndarray:
        best = self.mlp.forward(self.xp.asarray(x), training=False).argmax(axis=1)
        return best if self.xp is np else self.xp.asnumpy(best)


class TorchNetwork:
    """`devkernels.linear.torch.FusedMLP`, on the GPU if there is one."""

    def __init__(self, activation: str, seed: int):
        import torch

        from devkernels.linear.torch import FusedMLP as TorchMLP

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        start = FusedMLP(SIZES, activation=activation, seed=seed)  # the same start as the others
        self.mlp = TorchMLP(SIZES, activation)
        names = [f"layers.{i}.{p}" for i in range(len(SIZES) - 1) for p in ("weight", "bias")]
        values = zip(names, start.parameters(), strict=True)
        self.mlp.load_state_dict({name: torch.from_numpy(value) for name, value in values})
        self.mlp.to(self.device)
        self.optimiser = torch.optim.AdamW(self.mlp.parameters(), RATE, weight_decay=DECAY)

    def train(self, x, labels) -> float:
        x, labels = (self.torch.from_numpy(v).to(self.device) for v in (x, labels))
        loss = self.torch.nn.functional.cross_entropy(self.mlp(x), labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        return loss.item()

    def classify(self, x) -> np.ndarray:
        with self.torch.no_grad():
            return self.mlp(self.torch.from_numpy(x).to(self.device)).argmax(1).cpu().numpy()


class PlainNetwork:
    """The same network written out in NumPy, float64, nothing fused."""

    def __init__(self, activation: str, seed: int):
        start = FusedMLP(SIZES, activation=activation, seed=seed)
        self.activation = activation
        self.parameters = [p.astype(np.float64) for p in start.parameters()]
        self.optimiser = Adam(np, self.parameters)

    def _activate(self, z):
        if self.activation == "relu":
            return np.maximum(z, 0), (z > 0).astype(z.dtype)
        scale = np.sqrt(2 / np.pi)
        t = np.tanh(scale * (z + 0.044715 * z**3))
        return 0.5 * z * (1 + t), 0.5 * (1 + t) + 0.5 * z * (1 - t * t) * scale * (1 + 3 * 0.044715 * z * z)

    def _forward(self, x):
        kept = []
        x = np.asarray(x, np.float64)
        pairs = list(zip(self.parameters[::2], self.parameters[1::2], strict=True))
        for index, (weight, bias) in enumerate(pairs):
            z = x @ weight.T + bias
            y, slope = (z, np.ones_like(z)) if index == len(pairs) - 1 else self._activate(z)
            kept.append((x, slope))
            x = y
        return x, kept

    def train(self, x, labels) -> float:
        logits, kept = self._forward(x)
        loss, gradient = softmax_loss(np, logits, labels, "float64")
        gradients = []
        for weight, (inputs, slope) in zip(self.parameters[-2::-2], kept[::-1], strict=True):
            gradient = gradient * slope
            gradients += [gradient.sum(0), gradient.T @ inputs]
            gradient = gradient @ weight
        self.optimiser.update(gradients[::-1])
        return float(loss)

    def classify(self, x) -> np.ndarray:
        return self._forward(x)[0].argmax(axis=1)


def make_network(backend: str, activation: str, seed: int):
    """Network for a backend; ``auto`` takes CuPy or torch where there is a GPU for it, else NumPy."""
    if backend == "auto":
        backend = "numpy"
        if driver_present() and importlib.util.find_spec("nvmath"):
            backend = next((name for name in ("cupy", "torch") if importlib.util.find_spec(name)), "numpy")
    if backend == "torch":
        network = TorchNetwork(activation, seed)
        return network, f"torch on {network.device}"
    return FusedNetwork(backend, activation, seed), backend


def plot(path: Path, losses: dict[str, list[float]], accuracies: dict[str, list[float]]) -> None:
    """Loss and test accuracy of both networks over the epochs."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, values, label in ((axes[0], losses, "training loss"), (axes[1], accuracies, "test accuracy")):
        for (name, series), style in zip(values.items(), ("-", "--"), strict=True):
            axis.plot(range(1, len(series) + 1), series, style, label=name)
        axis.set(xlabel="epoch", ylabel=label)
        axis.legend()
    axes[0].set_yscale("log")
    figure.savefig(path, dpi=120)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["auto", "cupy", "torch", "numpy"], default="auto")
    parser.add_argument("--activation", choices=["relu", "gelu"], default="relu")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path, default=Path("digits.png"), help="file of the plot")
    options = parser.parse_args(arguments)

    x, x_test, y, y_test = load(options.seed)
    fused, where = make_network(options.backend, options.activation, options.seed)
    networks = {f"fused ({where})": fused, "plain NumPy, float64": PlainNetwork(options.activation, options.seed)}
    losses: dict[str, list[float]] = {name: [] for name in networks}
    accuracies: dict[str, list[float]] = {name: [] for name in networks}
    seconds = dict.fromkeys(networks, 0.0)
    random = np.random.default_rng(options.seed)
    with tqdm(range(options.epochs), unit="epoch", file=sys.stderr) as progress:
        for _ in progress:
            order = random.permutation(len(x))
            images = noisy(x, random)
            for name, network in networks.items():
                begin = time.perf_counter()
                total = sum(
                    network.train(images[batch], y[batch]) * len(batch)
                    for batch in np.split(order, range(BATCH, len(order), BATCH))
                )
                seconds[name] += time.perf_counter() - begin
                losses[name].append(total / len(x))
                accuracies[name].append(float((network.classify(x_test) == y_test).mean()))
            ours, plain = (series[-1] for series in losses.values())
            progress.set_postfix_str(f"loss {ours:.4f}, reference {plain:.4f}")
    print(f"{'epoch':>5} {'loss':>10} {'reference':>10}   test accuracy")
    ours, plain = losses.values()
    reached = next(iter(accuracies.values()))
    for epoch in sorted({1, 2, 5, *range(10, options.epochs + 1, 10), options.epochs}):
        if epoch <= options.epochs:
            print(f"{epoch:5d} {ours[epoch - 1]:10.5f} {plain[epoch - 1]:10.5f}   {reached[epoch - 1]:.4f}")
    for name in networks:
        print(f"{name}: test accuracy {accuracies[name][-1]:.4f}, {seconds[name]:.1f} s of training")
    plot(options.plot, losses, accuracies)
    print(f"wrote {options.plot}")
    if reached[-1] < GOAL:
        print(f"the goal of {GOAL:.0%} test accuracy was missed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
