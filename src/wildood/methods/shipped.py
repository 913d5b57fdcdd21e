"""The training methods that ship with wildood, by the name that the command line and experiments have for them."""

from wildood.methods.csi import Csi
from wildood.methods.energy_logistic import EnergyLogistic
from wildood.methods.energy_margin import EnergyMargin
from wildood.methods.godin import Godin
from wildood.methods.objective import Method
from wildood.methods.outlier_exposure import OutlierExposure
from wildood.methods.separate import Separate
from wildood.methods.woods import Woods
from wildood.methods.woods_alt import WoodsAlt

METHODS: dict[str, type[Method]] = {
    "woods": Woods,
    "woods-alt": WoodsAlt,
    "oe": OutlierExposure,
    "energy-margin": EnergyMargin,
    "energy-logistic": EnergyLogistic,
    "godin": Godin,
    "csi": Csi,
    "separate": Separate,
}
