"""Names of quark.onnx without a counterpart, and the nearest thing that works."""

# Names of Quark for what detent does not support: importing one raises an error that says so.
_INTEGERS = "detent writes 4, 8 and 16 bits: Int8Spec, UInt8Spec, Int16Spec, UInt16Spec"
_SPECS = "build a QConfig from specs: QConfig(QLayerConfig(UInt8Spec(), weight=Int8Spec()))"
_CALIBRATION = "detent.calibrate() writes statistics, and detent.quantize(statistics=...) takes them"
_METHODS = "CalibMethod has the methods of a spec"
ABSENT = {
    **dict.fromkeys(
        "UInt32Spec UInt32".split(),
        _INTEGERS,
    ),
    **dict.fromkeys(
        "BFloat16Spec BFloat16 Float16Spec Float16".split(), "detent.Config(float_type=16) or float_type='bf16' converts models"
    ),
    **dict.fromkeys("Config QuantizationConfig".split(), _SPECS),
    **dict.fromkeys(
        "XINT8_QCONFIG XINT8_ADAROUND_QCONFIG XINT8_ADAQUANT_QCONFIG VINT8_QCONFIG A8W8_QCONFIG A8W8_ADAROUND_QCONFIG "
        "A8W8_ADAQUANT_QCONFIG A16W8_QCONFIG A16W8_ADAROUND_QCONFIG A16W8_ADAQUANT_QCONFIG BF16_QCONFIG BFP16_QCONFIG".split(),
        _SPECS,
    ),
    "AutoMixprecisionConfig": "detent.Accuracy(target=0.999) keeps in float what costs accuracy",
    **dict.fromkeys(
        "AutoSearch SearchSpace generate_all_configs get_auto_search_config".split(),
        "detent.search() finds the best formats; AutoSearchPro has Quark's names for it",
    ),
    "BiasCorrectionConfig": "update_bias of AdaRoundConfig or AdaQuantConfig solves for the bias",
    "CLEConfig": "detent.quantize() equalizes uneven channels itself",
    "SmoothQuantConfig": "detent.quantize() equalizes uneven channels itself",
    "QuarotConfig": "detent.quantize() keeps layers with outliers in float",
    **dict.fromkeys(
        "CalibraterBase MinMaxCalibrater create_calibrator_float_scale create_calibrator_power_of_two "
        "write_calibration_table".split(),
        _CALIBRATION,
    ),
    **dict.fromkeys("ExtendedCalibrationMethod Int16Method LayerWiseMethod PowerOfTwoMethod".split(), _METHODS),
    **dict.fromkeys(
        "CachedDataReader PathDataReader RandomDataReader".split(), "give a folder of samples, or any iterable of dicts"
    ),
    **dict.fromkeys(
        "ExtendedQuantFormat VitisQuantFormat ExtendedQuantType VitisQuantType VitisExtendedQuantizer QuantizationMode".split(),
        "QuantFormat and QuantType have what detent writes: ONNX's own operators",
    ),
    "dump_model": "detent.compare() looks into models",
    "get_library_path": "Quark's library has the operators on block floats, and detent.compare() runs them itself",
}
