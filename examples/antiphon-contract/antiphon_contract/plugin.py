"""What this package offers; its modules are imported when somebody uses them."""

from collections.abc import Mapping

from antiphon import hookimpl


@hookimpl
def antiphon_pricing() -> Mapping[str, str]:
    return {"volume_discount": "antiphon_contract.pricing:VolumeDiscount"}


@hookimpl
def antiphon_reward_terms() -> Mapping[str, str]:
    return {"contract_share": "antiphon_contract.reward:ContractShare"}
