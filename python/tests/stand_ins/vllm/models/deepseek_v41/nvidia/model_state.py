"""Stands for vLLM's module of this name."""


class DeepseekV41ModelState:
    lookback_token_ids = None

    def prepare_inputs(self, input_batch, req_states):
        return {}
