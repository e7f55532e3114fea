"""Small methods of DomainBed's form, as the file of a paper would have them."""

import copy
import random
from collections import deque

import numpy as np
import torch
from domainbed import networks
from domainbed.lib.misc import seed_hash, something_of_a_fork
from torch import nn
from torch.nn import functional

try:
    import a_package_that_is_not_there as extra
except ImportError:
    extra = None


class Algorithm(nn.Module):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__()
        self.hparams = hparams

    def update(self, minibatches, unlabeled=None):
        raise NotImplementedError

    def predict(self, x):
        raise NotImplementedError


class ERM(Algorithm):
    """Cross entropy on all domains together."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.featurizer = networks.Featurizer(input_shape, hparams)
        self.classifier = networks.Classifier(self.featurizer.n_outputs, num_classes, hparams["nonlinear_classifier"])
        self.network = nn.Sequential(self.featurizer, self.classifier)
        self.optimizer = self.adam(self.network)

    def adam(self, module):
        return torch.optim.Adam(module.parameters(), lr=self.hparams["lr"], weight_decay=self.hparams["weight_decay"])

    def step(self, loss, *optimizers):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return {"loss": loss.item()}

    def update(self, minibatches, unlabeled=None):
        images, labels = map(torch.cat, zip(*minibatches, strict=True))
        return self.step(functional.cross_entropy(self.predict(images), labels), self.optimizer)

    def predict(self, x):
        return self.network(x)


class ERMOf2020(ERM):
    """Without unlabeled images."""

    def update(self, minibatches):
        return super().update(minibatches)


class ERMOfSWAD(ERM):
    """With two lists, as the published SWAD code has them."""

    def update(self, x, y, **kwargs):
        return super().update(list(zip(x, y, strict=True)))


class Align(ERM):
    """Equal means of the features of all domains."""

    def update(self, minibatches, unlabeled=None):
        features = [self.featurizer(images) for images, _ in minibatches]
        loss = sum(
            functional.cross_entropy(self.classifier(rows), labels)
            for rows, (_, labels) in zip(features, minibatches, strict=True)
        )
        means = torch.stack([rows.mean(0) for rows in features])
        return self.step(loss + self.hparams["gamma"] * means.var(0).sum(), self.optimizer)


class Adversary(ERM):
    """A discriminator and the network, each with an optimizer and turns of its own."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.register_buffer("update_count", torch.tensor([0]))
        self.discriminator = networks.MLP(self.featurizer.n_outputs, num_domains, hparams)
        self.optimizers = {"discriminator": self.adam(self.discriminator)}

    def update(self, minibatches, unlabeled=None):
        self.update_count += 1
        images, labels = map(torch.cat, zip(*minibatches, strict=True))
        domains = torch.cat([torch.full_like(y, i) for i, (_, y) in enumerate(minibatches)])
        features = self.featurizer(images)
        confusion = functional.cross_entropy(self.discriminator(features), domains)
        if self.update_count.item() % (1 + self.hparams["d_steps"]):
            return self.step(confusion, self.optimizers["discriminator"])
        loss = functional.cross_entropy(self.classifier(features), labels)
        return self.step(loss - self.hparams["lambda"] * confusion, self.optimizer)


class History:
    def __init__(self):
        self.means = {}

    def add(self, name, value):
        self.means[name] = 0.9 * self.means.get(name, value) + 0.1 * value
        return self.means[name]


class Teacher(ERM):
    """Predicts with an average of its weights, remembers features, mixes images, and restarts its optimizer."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.teacher = copy.deepcopy(self.network)
        self.history, self.queue, self.steps = History(), deque(maxlen=3), 0
        self.heads = [nn.Linear(self.featurizer.n_outputs, num_classes) for _ in range(num_domains)]
        self.head_optimizers = [torch.optim.SGD(head.parameters(), lr=0.01, momentum=0.9) for head in self.heads]
        self.register_buffer("prior", torch.full((num_classes,), 1 / num_classes))
        self.weights = np.ones(num_domains)

    def update(self, minibatches, unlabeled=None):
        self.steps += 1
        if self.steps == self.hparams["restart"]:
            self.optimizer = self.adam(self.network)
        images, labels = map(torch.cat, zip(*minibatches, strict=True))
        share, shift = np.random.beta(2, 2), random.choice([1, 2, 3])
        order = torch.randperm(len(images))
        features = self.featurizer(share * images + (1 - share) * images[order].roll(shift, 0))
        loss = functional.cross_entropy(self.classifier(features), labels)
        target = self.history.add("mean", features.detach().mean(0))
        if self.queue:
            loss = loss + (features.mean(0) - sum(self.queue) / len(self.queue)).square().sum()
        self.queue.append(target)
        for i, (head, optimizer) in enumerate(zip(self.heads, self.head_optimizers, strict=True)):
            rows = self.featurizer(minibatches[i][0]).detach()
            self.step(functional.cross_entropy(head(rows.to(head.weight.dtype)), minibatches[i][1]), optimizer)
            self.weights[i] *= 1.01
        values = self.step(loss * self.weights.mean(), self.optimizer)
        for old, new in zip(self.teacher.parameters(), self.network.parameters(), strict=True):
            old.data.lerp_(new.data, 0.1)
        self.prior = 0.9 * self.prior + 0.1 * torch.bincount(labels, minlength=len(self.prior)) / len(labels)
        return values

    def predict(self, x):
        return self.scores(x) - 0.1 * self.prior.log()

    def scores(self, x):
        return self.network(x) if self.training else self.teacher(x)


class Inner(ERM):
    """Steps of a copy that every update makes anew, as methods with an inner loop do."""

    def __init__(self, input_shape, num_classes, num_domains, hparams):
        Algorithm.__init__(self, input_shape, num_classes, num_domains, hparams)
        self.arguments = input_shape, num_classes, hparams
        self.network = networks.WholeFish(*self.arguments)
        self.inner_state = None

    def update(self, minibatches, unlabeled=None):
        self.inner = networks.WholeFish(*self.arguments, weights=self.network.state_dict()).to(minibatches[0][0])
        self.inner_optimizer = self.adam(self.inner)
        if self.inner_state is not None:
            self.inner_optimizer.load_state_dict(self.inner_state)
        for images, labels in minibatches:
            values = self.step(functional.cross_entropy(self.inner(images), labels), self.inner_optimizer)
        self.inner_state = self.inner_optimizer.state_dict()
        before, after = self.network.state_dict(), self.inner.state_dict()
        self.network.reset_weights({name: before[name].lerp(after[name], 0.5) for name in before})
        return values


# --- what cannot run ----------------------------------------------------------------------------------------------


class OwnNetwork(ERM):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        Algorithm.__init__(self, input_shape, num_classes, num_domains, hparams)
        self.network = nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes))


class NeedsGPU(ERM):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.scale = torch.ones(1).cuda()


class NeedsUnlabeled(ERM):
    def update(self, minibatches, unlabeled=None):
        return super().update([*minibatches, *((x, self.predict(x).argmax(1)) for x in unlabeled)])


class NeedsPackage(ERM):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.classifier = extra(self.classifier)


class NeedsHelper(ERM):
    def update(self, minibatches, unlabeled=None):
        return something_of_a_fork(minibatches, seed_hash(0))


class NeedsHparam(ERM):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.weight = hparams["of_no_registry"]


class Hidden(ERM):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__(input_shape, num_classes, num_domains, hparams)
        self.members = [self.network]

    def predict(self, x):
        return self.members[0](x)


class Lazy(ERM):
    def update(self, minibatches, unlabeled=None):
        if not hasattr(self, "ema"):
            self.ema = copy.deepcopy(self.network)
        return super().update(minibatches)


class Replaces(ERM):
    def update(self, minibatches, unlabeled=None):
        self.network = copy.deepcopy(self.network)
        return super().update(minibatches)


class FourChannels(ERM):
    def __init__(self, input_shape, num_classes, num_domains, hparams):
        super().__init__((1 + input_shape[0], *input_shape[1:]), num_classes, num_domains, hparams)


class Silent(ERM):
    def update(self, minibatches, unlabeled=None):
        super().update(minibatches)


class Wrong(ERM):
    def update(self, minibatches, unlabeled=None):
        return super().update(minibatches[0])
