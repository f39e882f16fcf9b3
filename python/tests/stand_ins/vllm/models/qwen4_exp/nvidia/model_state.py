"""Stands for vLLM's module of this name."""


class Qwen4ExpModelState:
    uses_ngram_embedding = False

    def prepare_inputs(self, input_batch, req_states):
        return {}
